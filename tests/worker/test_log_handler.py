"""Lines that handlers write with `logging`, in the format of the worker's log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred import App
from maitred.app.attempt import Attempt, running
from maitred.errors import UnknownChoice
from maitred.logs import logger
from maitred.redaction import Redaction
from maitred.settings import Log
from maitred.worker.log_handler import LogHandler
from tests.node.in_process import RecordedLog, in_a_loop
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CARD = "4111111111111111"


@contextmanager
def handled(log: RecordedLog, name: str = "shop") -> Iterator[logging.Logger]:
    """A logger whose records go to the log alone."""
    own, handler = logging.getLogger(name), LogHandler(log)
    own.addHandler(handler)
    own.propagate = False
    own.setLevel(logging.DEBUG)
    try:
        yield own
    finally:
        own.removeHandler(handler)
        own.propagate = True
        own.setLevel(logging.NOTSET)


def test_levels_extras_and_exceptions() -> None:
    log = RecordedLog()
    with handled(log) as own:
        own.debug("a")
        own.info("sent %d of %s", 3, "it", extra={"order": 7, "event": "x", "level": "y"})
        own.warning("b")
        own.critical("c")
        own.log(25, "d")
        try:
            int("too small")
        except ValueError:
            own.exception("failed")
        own.info("here", stack_info=True)
        own.info("no exception", exc_info=True)
    assert [line[:2] for line in log.lines[:5]] == [
        ("debug", "a"),
        ("info", "sent 3 of it"),
        ("warning", "b"),
        ("error", "c"),
        ("info", "d"),
    ]
    assert log.lines[1][2] == {"logger": "shop", "order": 7, "event_": "x", "level": "y"}
    level, event, fields = log.lines[5]
    assert (level, event) == ("error", "failed")
    assert fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("base 10: 'too small'")
    assert "test_levels" in log.lines[6][2]["stack"]
    assert "exception" not in log.lines[7][2]


class LabelledAttempt(Attempt):
    """One whose handler hides something."""

    @property
    def labels(self) -> dict[str, str | int]:
        return {"queue": "shop/charges"}

    def redaction(self) -> Redaction:
        return Redaction(["4111111111111111"])


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("cannot be read")

    __repr__ = __str__


def test_a_record_that_does_not_fit_its_text_is_written_all_the_same() -> None:
    log = RecordedLog()
    with handled(log) as own:
        own.info("%d of %d", "three")
        own.info("got %s", Unreadable())
        own.info(Unreadable())
    assert log.lines[0][1] == "%d of %d"
    assert log.lines[0][2]["format_error"].startswith("TypeError")
    assert log.lines[1][1] == "got %s"
    assert log.lines[2][1] == "a log record could not be written"


def test_no_field_costs_the_record() -> None:
    log = RecordedLog()
    attempt = LabelledAttempt(maitred.current().origin, (1, 1))
    with handled(log) as own:
        ticket = running.set(attempt)
        try:
            own.info("charged", extra={"queue": 1, "queue_": 2, "card": Unreadable()})
        finally:
            running.reset(ticket)
    ((level, event, fields),) = log.lines
    assert (level, event) == ("info", "charged")
    assert fields["queue"] == "shop/charges"
    assert fields["card"] == "<Unreadable>"


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_message_of_several_lines_is_one_line(form: Any) -> None:  # noqa: ANN401
    stream = io.StringIO()
    with handled(RecordedLog()) as own:
        own.handlers = [LogHandler(logger(Log(format=form), stream))]
        own.warning("one\n2026-01-01 [error] another")
        own.info("fields", extra={"many": {"a": object()}})
    assert len(stream.getvalue().splitlines()) == 2


def test_outside_of_a_worker_there_are_no_labels_and_a_wrong_format_is_refused() -> None:
    assert maitred.current().labels == {}
    assert maitred.current().redaction() is None
    with pytest.raises(UnknownChoice, match="'jsn'") as caught:
        maitred.LogHandler(format="jsn")  # type: ignore[arg-type]
    assert caught.value.remedy == "Did you mean 'json'?"


@in_a_loop
async def test_lines_of_handlers_have_their_task_and_hide_what_is_hidden(tmp_path: Path) -> None:
    app, log = App("shop"), RecordedLog()

    @app.handler("charge", retries=0, hide=["card"])
    async def charge(order: int, card: str) -> None:
        own.info("charging %s for %d", card, order, extra={"sent": {"card": card}, "order": order})
        await asyncio.sleep(0)
        try:
            int(f"card {card[:10]}")
        except ValueError:
            own.exception("failed")

    @app.handler("print", retries=0)
    def print_(order: int) -> None:
        own.info("printing %d", order)
        bare = threading.Thread(target=own.info, args=("in a thread of its own",))
        bare.start()
        bare.join()

    with handled(log) as own:
        async with serving(tmp_path, app, log=log):
            charged = await charge.enqueue(7, CARD)
            await charged.result(timeout=20)
            printed = await print_.enqueue(8)
            await printed.result(timeout=20)
    first, second, third, fourth = [one for one in log.lines if one[2].get("logger") == "shop"]
    assert first[1] == "charging [hidden] for 7"
    assert first[2] == {
        "queue": "shop/charge",
        "handler": charge.signature.function.__qualname__,
        "task": charged.id,
        "attempt": 1,
        "logger": "shop",
        "sent": "{'card': '[hidden]'}",
        "order": 7,
    }
    assert second[2]["exception"].endswith("base 10: 'card [hidden]'")
    assert (third[1], third[2]["task"], third[2]["queue"]) == (
        "printing 8",
        printed.id,
        "shop/print",
    )
    assert "task" not in fourth[2], "a thread of one's own does not inherit the context"


@in_a_loop
async def test_lines_of_queries_have_the_query(tmp_path: Path) -> None:  # noqa: ARG001
    app, log = App("shop"), RecordedLog()

    @app.handler("ask", hide=["card"])
    async def ask(card: str) -> str:
        own.info("asked %s", card)
        raise ValueError(f"not {card}")

    from tests.worker.running import a_worker

    with handled(log) as own:
        async with (
            ReservingNode() as node,
            a_worker(node, app, log=log) as worker,
            a_gateway(worker) as gateway,
        ):
            failure = await gateway.failure(gateway.run(node.reserve("ask"), CARD))
    ((_, event, fields),) = [one for one in log.lines if one[2].get("logger") == "shop"]
    assert event == "asked [hidden]"
    assert fields["queue"] == "shop/ask"
    assert "/" in fields["query"]
    assert "task" not in fields
    ((_, _, line),) = [one for one in log.lines if one[1] == "a query failed"]
    assert (line["query"], line["message"]) == (fields["query"], "not [hidden]")
    assert failure.message == "not [hidden]"
    assert CARD not in json.dumps(log.lines, default=str)
