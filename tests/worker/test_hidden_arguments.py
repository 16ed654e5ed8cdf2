"""Values of hidden parameters are in no line of the worker's log and in no failure it reports."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import msgpack

from maitred import App
from maitred.errors import InvalidArgument, TaskFailed, UnknownChoice
from maitred.protocol.handler_shapes import decode_shape
from maitred.protocol.queries import Attend
from maitred.worker import outcomes
from tests.app.fake_node import FakeNode
from tests.node.in_process import RecordedLog, in_a_loop
from tests.worker.running import a_worker

CARD = "4111-1111-2222-3333"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Card:
    number: str
    code: int

    def __post_init__(self) -> None:
        if self.code == 666:
            raise ValueError(f"not a card: {self}")


class Till:
    """Handlers that tell in every way what they should not."""

    def __init__(self) -> None:
        self.app = app = App("shop")

        @app.handler("quotes", retries=0, hide=["card"])
        async def quotes(how: str, card: Any, order: int = 7) -> Any:  # noqa: ANN401
            return tell(how, card, order)

        @app.handler("in-a-thread", retries=0, hide=["card"])
        def in_a_thread(how: str, card: Any, order: int = 7) -> Any:  # noqa: ANN401
            return tell(how, card, order)

        @app.handler("rows", retries=0, hide=["card"])
        async def rows(card: str) -> Any:  # noqa: ANN401
            yield 1
            raise KeyError(card)

        def tell(how: str, card: Any, order: int) -> Any:  # noqa: ANN401
            if how == "chained":
                try:
                    int(card)
                except ValueError as problem:
                    raise LookupError(f"order {order} of {card!r}") from problem
            if how == "note":
                noted = ValueError("refused")
                noted.add_note(f"the card was {card}")
                raise noted
            if how == "group":
                raise ExceptionGroup("all failed", [KeyError(card), ValueError(card.upper())])
            if how == "unserialisable":
                return Unserialisable(card)
            if how == "cleared":
                number = card.pop()
                raise ValueError(f"order {order}: {number}")
            raise ValueError(f"order {order}: {card}")

        self.quotes, self.in_a_thread, self.rows = quotes, in_a_thread, rows


class Unserialisable:
    def __init__(self, card: str) -> None:
        self.card = card

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        raise TypeError(f"{name} of {self.__dict__.get('card')}")


def words(log: RecordedLog) -> str:
    return json.dumps(log.lines, default=str)


@pytest.mark.parametrize("where", ["quotes", "in_a_thread"])
@pytest.mark.parametrize(
    ("how", "card"),
    [
        ("plain", CARD),
        ("chained", CARD),
        ("note", CARD),
        ("group", CARD),
        ("unserialisable", CARD),
        ("cleared", [CARD]),
        ("plain", {"number": CARD, "code": 123}),
    ],
)
@in_a_loop
async def test_a_task_that_fails(where: str, how: str, card: Any) -> None:  # noqa: ANN401
    till, log = Till(), RecordedLog()
    handler = getattr(till, where)
    async with FakeNode() as node, a_worker(node, till.app, handler.queue, log=log):
        task = await handler.enqueue(how, card)
        with pytest.raises(TaskFailed) as caught:
            await task.result(timeout=20)
    failed = caught.value
    told = f"{failed} {failed.message} {failed.remote_traceback}" + words(log)
    for part in ("4111-1", "1-2222", "2-3333", "123,", "123}"):
        assert part not in told
    assert [event for _, event, _ in log.lines].count("a task failed") == 1
    if how in {"plain", "cleared", "chained"}:
        assert "order 7" in told, "what is not hidden is shown"
        assert "[hidden]" in told
        assert "line " in failed.remote_traceback


@in_a_loop
async def test_the_rows_of_a_task() -> None:
    till, log = Till(), RecordedLog()
    async with FakeNode() as node, a_worker(node, till.app, "rows", log=log):
        task = await till.rows.enqueue(CARD)
        with pytest.raises(TaskFailed, match="hidden"):
            await task.result(timeout=20)
    assert "4111" not in words(log)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([CARD, {"number": "1", "code": 1}], id="an enum that quotes the value"),
        pytest.param(["red", {"number": CARD, "code": 666}], id="a class that quotes itself"),
    ],
)
@in_a_loop
async def test_arguments_that_do_not_fit_at_the_worker(arguments: list[Any]) -> None:
    app, other, log = App("shop"), App("shop"), RecordedLog()

    @app.handler("paint", retries=0, hide=["colour", "card"])
    async def paint(colour: Colour, card: Card) -> None: ...

    @other.handler("paint", retries=0)
    async def anything(colour: Any, card: Any) -> None: ...  # noqa: ANN401

    async with FakeNode() as node, a_worker(node, app, log=log):
        node.app(other)
        task = await anything.enqueue(*arguments)
        with pytest.raises(TaskFailed) as caught:
            await task.result(timeout=20)
        await other.close()
    told = str(caught.value) + words(log)
    assert "[hidden]" in told
    assert "4111-1" not in told


def test_the_kind_of_a_failure_stays() -> None:
    """Callers decide by it; the class of an exception is code, not data."""
    app = App("shop")

    @app.handler("charge", hide=["card"])
    async def charge(card: str) -> None: ...

    assert charge.hidden is not None
    redaction = charge.hidden.redaction(msgpack.encode(["unserialisable-result"]))
    _, body = outcomes.failure("unserialisable-result", "unserialisable-result", "trace")
    told = outcomes.decode_failure(outcomes.redacted(body, redaction))
    assert (told.kind, told.message, told.traceback) == (
        "unserialisable-result",
        "[hidden]",
        "trace",
    )


def test_the_default_of_a_parameter_is_hidden_as_well() -> None:
    app = App("shop")

    @app.handler("charge", hide=["key"])
    async def charge(order: int, key: str = CARD) -> None: ...

    assert charge.hidden is not None
    redaction = charge.hidden.redaction(msgpack.encode([7]))
    assert redaction.text(f"order 7 with {CARD}") == "order 7 with [hidden]"


def test_hide_is_checked_where_it_is_written() -> None:
    app = App("shop")
    with pytest.raises(UnknownChoice, match="no parameter of charge called 'crad'") as caught:

        @app.handler("charge", hide=["crad"])
        async def charge(order: int, card: str) -> None: ...

    assert caught.value.remedy == "Did you mean 'card'?"
    assert "charge" not in app.handlers
    with pytest.raises(InvalidArgument, match="list of parameters") as wrong:

        @app.handler("charge", hide="card")
        async def charge_(card: str) -> None: ...

    assert wrong.value.remedy == "Write hide=['card']."

    @app.handler("charge", hide=("card",))
    async def charge__(card: str) -> None: ...

    assert charge__.options(retries=0).hidden is charge__.hidden is not None


@in_a_loop
async def test_a_worker_announces_what_each_handler_hides() -> None:
    """So that the node can show operators the other arguments, also of tasks by HTTP."""
    app = Till().app

    def shared(card: str, order: int) -> None: ...

    app.handler("hides-one", hide=["card"])(shared)
    app.handler("hides-all", hide=["order", "card"])(shared)
    app.handler("hides-nothing")(shared)
    async with FakeNode() as node, a_worker(node, app):
        await node.until(lambda: {one.queue for one in node.heard(Attend)} == app.handlers.keys())
        announced = {one.queue: decode_shape(one.signature) for one in node.heard(Attend)}
    names = ["card", "order"]
    expected = {"hides-one": ["card"], "hides-all": names, "hides-nothing": []}
    assert {queue: shape.hidden for queue, shape in announced.items()} == {
        queue: expected.get(queue, ["card"]) for queue in app.handlers
    }
    assert [name for name, _, _ in announced["hides-all"].parameters] == names
