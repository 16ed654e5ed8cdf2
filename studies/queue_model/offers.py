"""The tasks and polls of the model, each as it stands at one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

TAKEN: Final = True
REFUSED: Final = False


class Timer(Protocol):
    """Something that will be called, unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """All that the model needs of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Timer: ...


class Task:
    """One task, from its arrival at a producer to the end of its service."""

    __slots__ = (
        "arrived_at",
        "finished",
        "home",
        "number",
        "service_seconds",
        "started_at",
        "stored",
    )

    def __init__(self, number: int, arrived_at: float, service_seconds: float) -> None:
        self.number = number
        self.arrived_at = arrived_at
        self.service_seconds = service_seconds
        self.home = 0
        self.stored = False
        self.started_at: float | None = None
        self.finished = False


class Supply:
    """A poll at one partition: a client's own, or one that a child forwarded."""

    __slots__ = ("deadline", "deliver", "empty", "forwarded", "listening", "over", "timer")

    def __init__(
        self,
        deadline: float,
        deliver: Callable[[Task, Callable[[bool], None]], None],
        empty: Callable[[], None],
    ) -> None:
        self.deadline = deadline
        self.deliver = deliver
        """Hand a task over; the function given is called with whether it was accepted."""
        self.empty = empty
        self.listening = False
        self.over = False
        """It was given a task, or ended, or was withdrawn: it takes nothing any more."""
        self.forwarded: Supply | None = None
        """What stands for it at the parent, while it holds a token."""
        self.timer: Timer | None = None


class Demand:
    """A task offered at one partition; `settled` is called once, with whether it was taken."""

    __slots__ = ("deadline", "expired", "from_child", "reserved", "retry_at", "settled", "stored",
                 "task", "timer")  # fmt: skip

    def __init__(
        self,
        task: Task,
        *,
        stored: bool,
        from_child: bool,
        deadline: float,
        settled: Callable[[bool], None],
    ) -> None:
        self.task = task
        self.stored = stored
        self.from_child = from_child
        self.deadline = deadline
        self.settled = settled
        self.reserved = False
        """Handed over to a poll, whose answer is on its way."""
        self.expired = False
        """The time to listen ran out while it was reserved."""
        self.retry_at = 0.0
        self.timer: Timer | None = None
