"""`maitred admin worker list`, `offline` and `online`, against canned answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from maitred.cli.main import cli
from maitred.errors import InvalidArgument, MaitredError, UnknownQueue, UnknownWorker
from tests.cli.query_node import EQUITY, Plant, plant, worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HISTORY = ("default", "EQUITY_MARKET_HDB", 1)
MAILS = ("shop", "mails", 1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Plant]:
    """Two workers for both equity queues, one for mails."""
    with plant(tmp_path) as running_plant:
        running_plant.queues = {
            EQUITY: [worker("ant", "a"), worker("bee", "b", busy=0)],
            HISTORY: [worker("ant", "a", heard_seconds=0.1, busy=2), worker("bee", "b")],
            MAILS: [worker("cat", "c", address="", suspected=True)],
        }
        yield running_plant


def command(node: Plant, *arguments: str) -> Result:
    done = CliRunner().invoke(
        cli, ["admin", "worker", *arguments, "--url", node.url], standalone_mode=False
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit | MaitredError):
        raise done.exception
    return done


def as_json(node: Plant, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return json.loads(command(node, *arguments, "--json").stdout)


def test_all_workers_each_once(node: Plant) -> None:
    done = command(node, "list")
    assert done.exit_code == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == [
        *("worker", "session", "state", "slots", "busy", "limit", "heard", "address", "queues")
    ]
    assert [line.split()[0] for line in lines] == ["ant", "bee", "cat"]
    assert "default/EQUITY_MARKET_HDB, default/EQUITY_MARKET_RDB" in lines[0]
    assert "100 ms ago" in lines[0]
    assert "online, does not answer" in lines[2]
    assert "none: relayed" in lines[2]
    ant = as_json(node, "list")["workers"][0]
    assert (ant["worker"], ant["session"], ant["busy"]) == ("ant", "a" * 32, 2)
    assert ant["queues"] == ["default/EQUITY_MARKET_HDB", "default/EQUITY_MARKET_RDB"]


def test_the_workers_of_a_namespace(node: Plant) -> None:
    workers = as_json(node, "list", "--namespace", "shop")["workers"]
    assert [one["worker"] for one in workers] == ["cat"]
    done = command(node, "list", "--namespace", "shpo")
    assert "No workers for queues of the namespace shpo." in done.stdout
    assert as_json(node, "list", "mails", "--namespace", "shop")["workers"] == workers


def test_a_worker_that_fails_at_one_of_its_queues(node: Plant) -> None:
    node.queues[EQUITY] = [worker("ant", "a", good=0.17), worker("bee", "b", good=0.96)]
    _, ant, bee, _ = command(node, "list").stdout.splitlines()
    assert "online, fails 83 %" in ant
    assert "fails" not in bee
    assert [one["good"] for one in as_json(node, "list")["workers"]] == [0.17, 0.96, 1.0]


def test_the_limit_of_a_worker_and_why_it_is_not_higher(node: Plant) -> None:
    node.queues[EQUITY] = [
        worker("ant", "a", limit=5, limit_reason="busy-threads", blocked=1_200),
        worker("bee", "b", limit=8, limit_reason="slots"),
    ]
    node.queues[HISTORY] = []
    _, ant, bee, cat = command(node, "list").stdout.splitlines()
    assert "5: busy-threads" in ant
    assert "online, blocked 1,200 times" in ant
    assert "slots" not in bee
    assert "busy-" not in cat
    told = as_json(node, "list")["workers"]
    assert [(one["limit"], one["limit_reason"], one["blocked"]) for one in told] == [
        (5, "busy-threads", 1_200),
        (8, "slots", 0),
        (None, None, 0),
    ]


def test_workers_of_some_queues(node: Plant) -> None:
    told = as_json(node, "list", "shop/mails")
    assert [one["worker"] for one in told["workers"]] == ["cat"]
    told = as_json(node, "list", "mails", "--namespace", "shop")
    assert [one["worker"] for one in told["workers"]] == ["cat"]


def test_a_queue_that_nobody_uses(node: Plant) -> None:
    problem = command(node, "list", "shop/mail").exception
    assert isinstance(problem, UnknownQueue)
    assert problem.remedy == "Did you mean 'shop/mails'?"
    some = command(node, "list", "shop/mail", "shop/mails")
    assert some.exit_code == 1
    assert "cat" in some.stdout
    assert "shop/mail: The queue shop/mail does not exist." in some.stderr


def test_nobody_is_there(node: Plant) -> None:
    node.queues = {EQUITY: []}
    assert "No workers. `maitred worker MODULE:APP` starts one." in command(node, "list").stdout
    problem = command(node, "offline", "ant").exception
    assert isinstance(problem, UnknownWorker)
    assert "nor any other" in problem.sentence


def test_offline_at_every_queue(node: Plant) -> None:
    done = command(node, "offline", "ant")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        "ant (aaaaaaaa) takes no more work, and finishes what it has (2 of 8 slots when it was "
        "heard of last).\n"
    )
    assert sorted(node.orders) == [
        ("offline", "a" * 32, "EQUITY_MARKET_HDB"),
        ("offline", "a" * 32, "EQUITY_MARKET_RDB"),
    ]
    back = command(node, "online", "aaaaaaaa")
    assert "ant (aaaaaaaa) was told to offer its 8 slots again." in back.stdout
    assert [order for order, *_ in node.orders[2:]] == ["online", "online"]


def test_offline_and_wait_until_it_is(node: Plant) -> None:
    node.looks_until_offline = 2
    node.queues = {EQUITY: [worker("ant", "a")]}
    done = command(node, "offline", "ant", "--wait", "--queue", "default/EQUITY_MARKET_RDB")
    assert done.exit_code == 0, done.stderr
    assert "ant draining, 3 of 8 slots busy" in done.stderr
    assert "ant (aaaaaaaa) is offline: nothing runs there." in done.stdout
    assert "maitred admin worker online aaaaaaaa" in done.stdout


def test_waiting_as_json_says_nothing_else(node: Plant) -> None:
    node.queues = {EQUITY: [worker("ant", "a")]}
    node.looks_until_offline = 2
    done = command(node, "offline", "ant", "--wait", "--json")
    assert done.stderr == ""
    (told,) = json.loads(done.stdout)["workers"]
    assert (told["worker"], told["state"]) == ("ant", "offline")


def test_all_of_one_name_or_one_of_them(node: Plant) -> None:
    node.queues = {EQUITY: [worker("ant", "a"), worker("ant", "b")]}
    assert len(as_json(node, "offline", "ant")["workers"]) == 2
    node.orders.clear()
    (told,) = as_json(node, "online", "b" * 10)["workers"]
    assert told["session"] == "b" * 32
    assert node.orders == [("online", "b" * 32, "EQUITY_MARKET_RDB")]


def test_names_that_nobody_has(node: Plant) -> None:
    near = command(node, "offline", "antt").exception
    assert isinstance(near, UnknownWorker)
    assert near.remedy == "Did you mean 'ant'?"
    far = command(node, "offline", "zzz").exception
    assert isinstance(far, UnknownWorker)
    assert far.remedy == "There are: ant, bee, cat."
    assert isinstance(command(node, "offline", " ").exception, InvalidArgument)
    assert node.orders == []
