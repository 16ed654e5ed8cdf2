"""A request that another shard answers, and that its caller takes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from maitred.errors import Cancelled, DeadlineExceeded
from maitred.node.work import ForwardedWork
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.tasks import Describe

STREAM, ASKED = 3, 9


class Link:
    """The connection to the other shard."""

    def __init__(self) -> None:
        self.told = 0
        self.pending: dict[int, object] = {}
        self.said: list[int] = []

    def ask(self, _opcode: int, _body: bytes, receiver: object, _deadline: float) -> int:
        self.pending[ASKED] = receiver
        return ASKED

    def send(self, _flags: int, stream: int, opcode: int, _body: bytes) -> None:
        assert stream == ASKED
        self.said.append(opcode)

    def give_up(self, stream: int, _receiver: object) -> None:
        del self.pending[stream]


class Connection:
    """The connection to the caller."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(time=lambda: 0.0)
        self.shard = SimpleNamespace(homes_told=[b"home"])
        self.under_way: dict[int, object] = {}
        self.told: list[object] = []

    def work_begins(self, stream: int, work: object, _size: int) -> None:
        self.under_way[stream] = work

    def work_ends(self, stream: int, work: object, _size: int) -> bool:
        return self.under_way.pop(stream, None) is work

    def refuse(self, _stream: int, problem: Exception) -> None:
        self.told.append(problem)

    def pass_answer(self, _flags: int, _stream: int, _opcode: int, body: bytes) -> None:
        self.told.append(body)

    def pass_error(self, _stream: int, body: bytes) -> None:
        self.told.append(body)


def forwarded() -> tuple[Any, Any, ForwardedWork]:
    connection, link = Connection(), Link()
    made: Any = connection
    work = ForwardedWork(made, STREAM, Opcode.OFFER, 1, 0)
    asked: Any = link
    work.ask(asked, Describe("n", "q", 1, 0, 0), 5.0)
    return connection, link, work


def test_an_answer_on_its_way_reaches_a_caller_that_takes_the_request_back() -> None:
    """Seed 71000012 of many-queues: tasks in the answer to a withdrawn offer were lost for a lease,
    and an attempt was counted, because the shard in between had answered by itself."""
    connection, link, work = forwarded()
    work.stop(Cancelled("The caller took the request back."))
    assert link.said == [Opcode.CANCEL]
    assert connection.told == []
    assert not work.over
    work.answered(Frame(0, ASKED, Opcode.OFFER + 0x80, b" tasks"))
    assert connection.told == [b"home tasks"]
    assert work.over


def test_other_ends_do_not_wait_for_the_owner() -> None:
    connection, link, work = forwarded()
    late = DeadlineExceeded("too late")
    work.stop(late)
    assert connection.told == [late]
    assert not link.pending
