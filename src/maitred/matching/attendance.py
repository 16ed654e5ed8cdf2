"""What the root of a queue knows of one worker that attends."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    from maitred.matching.subscribers import IssuedPass, SubscriberKey
    from maitred.matching.task import Token

Order = Literal["", "offline", "online"]
State = Literal["online", "draining", "offline"]


class Attendance(Struct, eq=False):
    """One worker that attends."""

    session: bytes
    worker: str
    address: str
    slots: int
    busy: int
    state: State
    heard: float
    token: Token = None
    """The token of its long poll, while that waits."""
    deadline: float = inf
    """When its long poll is answered or, if none waits, when the worker is forgotten."""
    order: Order = ""
    """An operator's order that the worker has not followed yet."""
    ordered_at: float = -inf
    suspected: bool = False
    passes: dict[SubscriberKey, IssuedPass] = field(default_factory=dict)
    """Passes of gateways that may send queries without a reservation."""
    tell_at: float = inf
    """When its timer for passes rings."""
    good: float = 1.0
    """The share of good answers that the worker reports."""
    told_best: float = 0.0
    """The best share among the other workers, as this worker was told last."""
    limit: int | None = None
    """How many queries it takes at a time, as it reports."""
    limit_reason: str = ""
    blocked: int = 0
    """How often its event loop was blocked, as it reports."""

    @property
    def serves(self) -> bool:
        """Whether the worker takes queries."""
        return self.state == "online" and not self.suspected
