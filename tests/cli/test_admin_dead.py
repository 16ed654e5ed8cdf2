"""`maitred admin queue dead`: list, show, retry and drop, against canned answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred.cli import selection
from maitred.cli.admin_letters import BATCH, PAGE
from maitred.cli.admin_names import LetterId
from maitred.cli.admin_payload import failure_of, payload_of
from maitred.errors import InternalError, InvalidArgument
from maitred.protocol.tasks import DeadLetters, Failure
from tests.cli.admin_node import SECOND_RANGE, CannedNode, CannedQueue, canned_node, letter
from tests.cli.running import maitred
from tests.cli.test_admin import COLUMNS, queue_command, queue_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

QUEUE = "shop/thumbnails"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CannedNode]:
    with canned_node(tmp_path) as running:
        yield running


@pytest.fixture
def queue(node: CannedNode) -> CannedQueue:
    """Three partitions, of which the first has three letters and the last has two."""
    made = node.queue(QUEUE, read=3, write=3, version=1)
    made.dead = {0: [letter(0, number) for number in range(3)], 2: [letter(2, 0), letter(2, 1)]}
    return made


def dead(node: CannedNode, action: str, *arguments: str) -> Result:
    return queue_command(node, "dead", action, QUEUE, *arguments)


def dead_json(node: CannedNode, action: str, *arguments: str) -> Any:  # noqa: ANN401
    return queue_json(node, "dead", action, QUEUE, *arguments)


def ids(*found: tuple[int, int]) -> list[str]:
    return [f"{partition}/{SECOND_RANGE + number}" for partition, number in found]


ALL = ids((0, 0), (0, 1), (0, 2), (2, 0), (2, 1))


# list


def test_letters_of_all_partitions(node: CannedNode, queue: CannedQueue) -> None:
    queue.dead[2][1] = letter(
        2, 1, failure=msgpack.encode(Failure("KeyError", "a\x1b[31m long\n" + "story " * 50))
    )
    done = dead(node, "list")
    assert done.exit_code == 0
    heading, *rows = done.stdout.splitlines()
    assert heading.split() == ["id", "died", "reason", "attempts", "payload", "failure"]
    assert [row.split()[0] for row in rows] == ALL
    assert "ValueError: no 0" in rows[0]
    assert rows[4].endswith("...")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    assert done.stderr == ""


def test_letters_as_json_in_pages(node: CannedNode, queue: CannedQueue) -> None:
    assert queue.counts.read == 3
    told = dead_json(node, "list", "--limit", "2")
    assert [one["id"] for one in told["letters"]] == ALL[:2]
    assert (told["total"], told["next"]) == (5, ALL[1])
    assert told["letters"][0]["failure"] == {
        "kind": "ValueError",
        "message": "no 0",
        "traceback": "Traceback: ...",
    }
    assert "payload" not in told["letters"][0]
    told = dead_json(node, "list", "--limit", "2", "--after", told["next"])
    assert [one["id"] for one in told["letters"]] == ALL[2:4]
    told = dead_json(node, "list", "--limit", "2", "--after", told["next"])
    assert [one["id"] for one in told["letters"]] == ALL[4:]
    assert told["next"] is None
    cut = dead(node, "list", "--limit", "2")
    assert f"2 of 5. The next page: --after {ALL[1]}" in cut.stderr


def test_more_letters_than_one_answer_has(node: CannedNode, queue: CannedQueue) -> None:
    queue.dead = {1: [letter(1, number) for number in range(2 * PAGE + 7)]}
    told = dead_json(node, "list", "--limit", "100000")
    assert len(told["letters"]) == 2 * PAGE + 7
    assert told["next"] is None
    assert max(one.most for one in node.asked if isinstance(one, DeadLetters)) == PAGE
    exactly = dead_json(node, "list", "--limit", str(2 * PAGE + 7))
    assert exactly["next"] is None
    assert len(exactly["letters"]) == 2 * PAGE + 7


def test_no_letters(node: CannedNode, queue: CannedQueue) -> None:
    queue.dead = {}
    assert dead(node, "list").stdout == "shop/thumbnails has no dead letters.\n"
    assert dead(node, "retry", "--all").stdout == (
        "0 dead letters of shop/thumbnails: will be tried again.\n"
    )


def test_a_partition_that_does_not_answer(node: CannedNode, queue: CannedQueue) -> None:
    queue.silent[2] = InternalError("It stumbled.")
    done = dead(node, "list")
    assert done.exit_code == 1
    assert [row.split()[0] for row in done.stdout.splitlines()[1:]] == ALL[:3]
    assert "partition 2: It stumbled. [internal-error]" in done.stderr
    told = dead_json(node, "list")
    assert told["unreachable"][0]["error"]["code"] == "internal-error"
    everything = dead(node, "drop", "--all", "--yes")
    assert everything.exit_code == 1
    assert "3 dead letters of shop/thumbnails: dropped." in everything.stdout
    assert "partition 2: It stumbled." in everything.stderr


# show


def test_a_letter_with_its_payload_and_its_failure(node: CannedNode, queue: CannedQueue) -> None:
    assert queue.dead
    done = dead(node, "show", ALL[1])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == ALL[1]
    for part in (
        "reason      failed",
        "attempts    4",
        "failure     ValueError: no 1",
        "died        2023-11-14T22:13:21",
        '"url": "https://example.org/1"',
        "Traceback: ...",
    ):
        assert part in done.stdout
    told = dead_json(node, "show", ALL[1])
    assert told["payload"] == {"url": "https://example.org/1"}
    assert told["payload_encoding"] == "msgpack"
    assert told["failure"]["traceback"] == "Traceback: ..."


def test_a_payload_that_is_no_msgpack(node: CannedNode, queue: CannedQueue) -> None:
    queue.dead[0][0] = letter(0, 0, payload=b"\xc1\x00\xff", failure=b"")
    done = dead(node, "show", ALL[0])
    assert "c1 00 ff" in done.stdout
    assert "failure" not in done.stdout
    told = dead_json(node, "show", ALL[0])
    assert (told["payload"], told["payload_encoding"]) == ("c1 00 ff", "hex")
    assert told["failure"] is None


def test_a_letter_that_is_not_there(node: CannedNode, queue: CannedQueue) -> None:
    assert queue.dead
    done = dead(node, "show", "0/77")
    assert isinstance(done.exception, InvalidArgument)
    assert "has no dead letter 0/77" in done.exception.sentence


@pytest.mark.parametrize("text", ["", "7", "a/b", "1/", "/1", "-1/2", "1/2/3", "1/2 ", "100000/1"])
@pytest.mark.parametrize("action", ["show", "retry", "drop"])
def test_ids_that_are_none(text: str, action: str) -> None:
    with pytest.raises(InvalidArgument, match="no dead letter's id"):
        LetterId.parse(text)
    if text == "a/b":
        done = maitred("admin", "queue", "dead", action, QUEUE, "--", text)
        assert done.returncode == 2
        assert "[invalid-argument]" in done.stderr


def test_ids_with_very_many_digits() -> None:
    assert LetterId.parse(f"3/{2**63 - 1}") == (3, 2**63 - 1)
    for text in (f"3/{2**63}", "3/" + "9" * 10_000, "9" * 10_000 + "/1", "3/٣"):
        with pytest.raises(InvalidArgument):
            LetterId.parse(text)


@pytest.mark.parametrize(
    ("withheld", "said"),
    [
        ("permission", "(needs the permission `reveal`)"),
        ("unknown", "(not shown: no worker has said which arguments are hidden)"),
        ("a newer reason", "(a newer reason)"),
    ],
)
def test_a_payload_that_is_not_shown(
    node: CannedNode, queue: CannedQueue, withheld: str, said: str
) -> None:
    queue.dead[0][0] = letter(0, 0, payload=b"", payload_bytes=40, withheld=withheld)
    done = dead(node, "show", ALL[0])
    assert f"payload     40 B {said}\n" in done.stdout
    told = dead_json(node, "show", ALL[0])
    assert (told["payload"], told["payload_encoding"], told["withheld"]) == (None, None, withheld)


# retry and drop


def test_some_are_retried(node: CannedNode, queue: CannedQueue) -> None:
    done = dead(node, "retry", ALL[0], ALL[4], ALL[0])
    assert done.exit_code == 0
    assert done.stdout == "2 dead letters of shop/thumbnails: will be tried again.\n"
    assert [len(letters) for letters in queue.dead.values()] == [2, 1]
    (asked, other) = [one for one in node.asked if isinstance(one, DeadLetters)]
    assert {asked.action, other.action} == {"retry"}


def test_those_that_are_not_there_are_named(node: CannedNode, queue: CannedQueue) -> None:
    done = dead(node, "drop", "--yes", ALL[0], "1/5", "1/6")
    assert done.exit_code == 1
    assert done.stdout == "1 dead letter of shop/thumbnails: dropped.\n"
    assert done.stderr == "There is no dead letter 1/5, 1/6.\n"
    told = dead_json(node, "drop", "--yes", "1/5", ALL[1])
    assert told == {"action": "drop", "done": 1, "missing": ["1/5"], "unreachable": []}
    assert len(queue.dead[0]) == 1


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_all_of_them_page_by_page(node: CannedNode, queue: CannedQueue, action: str) -> None:
    many = 2 * PAGE + 50
    queue.dead = {at: [letter(at, number) for number in range(many)] for at in range(3)}
    done = dead(node, action, "--all", "--yes")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{3 * many:,} dead letters of shop/thumbnails")
    assert not any(queue.dead.values())
    assert "100%" in done.stderr, "progress"
    longest = max(len(one.sequences) for one in node.asked if isinstance(one, DeadLetters))
    assert longest <= min(PAGE, BATCH)


def test_a_letter_that_dies_again_at_once_does_not_keep_us(
    node: CannedNode, queue: CannedQueue
) -> None:
    queue.dead = {0: [letter(0, number) for number in range(3)]}
    plain = queue.letters

    def reviving(asked: DeadLetters) -> Any:  # noqa: ANN401
        found = plain(asked)
        if asked.action == "retry":
            last = asked.sequences[-1] - SECOND_RANGE
            queue.dead[0] += [letter(0, last + at + 1) for at, _ in enumerate(found.letters)]
        return found

    queue.letters = reviving  # type: ignore[method-assign]
    done = dead(node, "retry", "--all", "--yes")
    assert done.stdout.startswith("3 dead letters")
    assert len(queue.dead[0]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("drop", ALL[0]), "To drop 1 dead letter of shop/thumbnails needs a yes"),
        (("drop", "--all"), "To drop 5 dead letters of shop/thumbnails needs a yes"),
        (("retry", "--all"), "To retry 5 dead letters of shop/thumbnails needs a yes"),
        (("drop", "--all", ALL[0]), "Give either ids or --all"),
        (("retry",), "Nothing says which dead letters to retry"),
    ],
)
def test_what_is_not_done_unasked(
    node: CannedNode, queue: CannedQueue, arguments: tuple[str, ...], said: str
) -> None:
    done = dead(node, *arguments)
    assert isinstance(done.exception, InvalidArgument)
    assert said in done.exception.sentence
    assert sum(map(len, queue.dead.values())) == 5


@pytest.mark.parametrize(("typed", "left"), [("y\n", 0), ("n\n", 5), ("\n", 5), ("", 5)])
def test_a_person_is_asked(
    node: CannedNode,
    queue: CannedQueue,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    left: int,
) -> None:
    monkeypatch.setattr(selection, "stdin_is_terminal", lambda: True)
    done = queue_command(node, "dead", "drop", QUEUE, "--all", typed=typed)
    assert isinstance(done.exception, click.Abort) == bool(left)
    question = "Drop 5 dead letters of shop/thumbnails? They cannot be brought back. [y/N]:"
    assert question in done.stderr
    assert sum(map(len, queue.dead.values())) == left


# What people see of payloads


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
        | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9) | st.binary(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)  # fmt: skip
def test_any_msgpack_becomes_json(value: object) -> None:
    shown = payload_of(msgpack.encode(value))
    assert shown.encoding == "msgpack"
    json.dumps(shown.value, allow_nan=False)
    shown.text()


@given(st.binary(max_size=50))
def test_any_bytes_become_text(body: bytes) -> None:
    shown = payload_of(body)
    json.dumps(shown.value, allow_nan=False)
    if shown.encoding == "hex":
        assert bytes.fromhex(shown.text()) == body
    failure = failure_of(body)
    if failure is not None:
        assert "\x1b" not in failure.kind + failure.message + failure.traceback


def test_what_json_has_no_word_for() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    value = {"b": b"\x01\xff", "t": moment, "nan": float("nan"), 7: [b""]}
    assert payload_of(msgpack.encode(value)).value == {
        "b": "bytes 01ff",
        "t": "2026-01-02 00:00:00+00:00",
        "nan": "nan",
        "7": ["bytes"],
    }
    deep = b"\x91" * 100_000 + b"\xc0"
    assert payload_of(deep).encoding == "hex"
