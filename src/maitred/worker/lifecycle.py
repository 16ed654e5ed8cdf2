"""The phases of a worker, and the table of the events that change them. Pure.

The table rules: `WorkerLifecycle.happen` changes the phase, and nothing else does. A pair that is
not in the table raises `InternalError`. Events that come from outside at any moment, such as an
operator's order to a worker that drains already, are listed with the phase in which they change
nothing.

docs/architecture.md has the table as a diagram.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from maitred.states import StateTable


class WorkerPhase(Enum):
    """What a worker does with its slots."""

    STARTING = "starting"
    """It was made, and its `run` was not called."""
    SERVING = "serving"
    """It offers its free slots and begins what arrives. The only phase in which it does."""
    OFFLINE = "offline"
    """An operator took it offline: it finishes what runs, returns tasks that arrive, and waits."""
    DRAINING = "draining"
    """It was told to stop: it finishes what runs, returns tasks that arrive, and then ends."""
    STOPPED = "stopped"
    """It has closed its listener and sends nothing any more."""


class WorkerEvent(Enum):
    """What can happen to a worker as a whole."""

    START = "start"
    """Its `run` was called, which opens its listener and offers its slots."""
    GO_OFFLINE = "go offline"
    """An operator orders it to take no more work."""
    GO_ONLINE = "go online"
    """An operator orders it to take work again."""
    STOP = "stop"
    """A signal, or the program that runs the worker, wants it to end."""
    END = "end"
    """It has drained, its drain took too long, or its `run` was cancelled or failed."""


STARTING, SERVING, OFFLINE, DRAINING, STOPPED = WorkerPhase

WORKER_TABLE: Final = StateTable[WorkerPhase, WorkerEvent](
    "worker",
    {STARTING: "made"},
    {
        STARTING: {
            WorkerEvent.START: SERVING,
            WorkerEvent.STOP: DRAINING,
        },
        SERVING: {
            WorkerEvent.GO_ONLINE: SERVING,
            WorkerEvent.GO_OFFLINE: OFFLINE,
            WorkerEvent.STOP: DRAINING,
            WorkerEvent.END: STOPPED,
        },
        OFFLINE: {
            WorkerEvent.GO_OFFLINE: OFFLINE,
            WorkerEvent.GO_ONLINE: SERVING,
            WorkerEvent.STOP: DRAINING,
            WorkerEvent.END: STOPPED,
        },
        DRAINING: {
            WorkerEvent.START: DRAINING,  # it was told to stop before its `run` was called
            WorkerEvent.GO_OFFLINE: DRAINING,
            WorkerEvent.GO_ONLINE: DRAINING,
            WorkerEvent.STOP: DRAINING,
            WorkerEvent.END: STOPPED,
        },
        STOPPED: {},
    },
)


class WorkerLifecycle:
    """Holds the phase of one worker."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = STARTING

    def happen(self, event: WorkerEvent) -> bool:
        """Move to the phase that follows; return whether that is another one."""
        before = self.phase
        self.phase = WORKER_TABLE.after(before, event)
        return self.phase is not before

    def __repr__(self) -> str:
        return f"<WorkerLifecycle {self.phase.value}>"
