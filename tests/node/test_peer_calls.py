"""Requests of a shard to another shard: how long it waits for the answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from maitred.node.peer_calls import OFFER_GRACE_SECONDS, PeerCall
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.messages import encode
from maitred.protocol.tasks import Given, Offer, Offered

if TYPE_CHECKING:
    from maitred.wire.caller import Receiver

NOW = 100.0


class Link:
    """A link to a shard that answers when the test says so, or at the deadline not at all."""

    told = 1
    closing = False

    def __init__(self) -> None:
        self.loop = SimpleNamespace(time=lambda: NOW)
        self.deadline = 0.0
        self.receiver: Any = None

    def ask(self, opcode: int, body: bytes, receiver: Receiver, deadline: float) -> int:  # noqa: ARG002
        self.receiver, self.deadline = receiver, deadline
        return 3

    def send(self, *_: object) -> None:
        """Forget the CANCEL: the answer is on its way."""


def test_a_task_that_the_parent_gives_in_the_last_moment_is_waited_for() -> None:
    # Else its owner would have leased it to a worker that never hears of it.
    outcomes: list[Any] = []
    call = PeerCall(cast("Any", None), 0, Opcode.OFFER, outcomes.append)
    link = Link()
    offer = Offer("shop", "q", 1, 0, 0, 1, b"a worker's own..", "worker", 1)
    call.ask(cast("Any", link), offer, NOW + 10.0)
    assert offer.timeout_milliseconds == 10_000, "the parent answers by then"
    assert link.deadline == NOW + 10.0 + OFFER_GRACE_SECONDS
    call.recall()
    given = Offered([Given(0, 7, 1, b"proof", 0.0, b"x")], 4.0, 0, 0.0, None, [])
    link.receiver.answered(Frame(0, 3, Opcode.OFFER + 0x80, encode(given)))
    assert [one.tasks[0].sequence for one in outcomes] == [7]
