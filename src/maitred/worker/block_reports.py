"""Log lines about a blocked event loop: which handler blocks it, and where in its code."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.line_budget import LineBudget, left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from maitred.errors import MaitredError
    from maitred.logs import Logger
    from maitred.worker.execution import Execution
    from maitred.worker.query import Query
    from maitred.worker.statistics import WorkerStatistics

QUIET_SECONDS: Final = 10.0
"""Seconds without a further line after a line about a block; the next one says how many blocks had
none. A handler that always blocks must not fill the log."""

STACK_FRAMES: Final = 12
"""The innermost frames of the handler's stack that a line shows."""

STACK_LETTERS: Final = 4_000
"""Longest stack in a line. Its end says where the handler is, so its beginning is cut."""

HELD_SHARE: Final = 0.5
"""A process that computed for this much of the time in which its watching thread did not run was
busy: another thread held the GIL. With less, the process may have been stopped as well, or had no
CPU time."""

_PACKAGE: Final = str(Path(__file__).parent.parent)
"""The directory of maitred's own coroutines."""

_OURS: Final = ("maitred/worker/handler_call.py", "maitred/worker/streams.py")
"""The files that call handlers. The frames above them are the same for all handlers."""


class BlockReports:
    """Counts the blocks of one loop and logs them; called by the thread that watches it.

    Make it in the loop's own thread.
    """

    def __init__(
        self,
        statistics: WorkerStatistics,
        log: Logger,
        attempts: Callable[[], Iterable[Execution | Query]],
        clock: Callable[[], float],
    ) -> None:
        self._statistics = statistics
        self._log = log
        self._attempts = attempts
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._budget = LineBudget(QUIET_SECONDS)
        self._said = False
        """Whether a line was written about the block that lasts."""
        self._problem_said = False

    def blocked(self, seconds: float, overslept: float, cpu_seconds: float) -> None:
        """Count and log a block that has lasted for so many seconds.

        `overslept` is for how long the watching thread did not run either, `cpu_seconds` the CPU
        time of the process since that thread last ran.
        """
        self._statistics.blocked += 1
        self._problem_said = False
        unlogged = self._budget.take(self._clock())
        self._said = unlogged is not None
        if unlogged is None:
            return
        facts: dict[str, Any] = {"seconds": round(seconds, 2)} | self._culprit()
        facts |= left_out(unlogged)
        held = overslept >= seconds * HELD_SHARE
        if held and cpu_seconds >= overslept * HELD_SHARE:
            event = "a handler held the GIL: no thread of this worker ran or renewed leases"
            facts["remedy"] = (
                "Run it in a process: await maitred.offload() with a ProcessPoolExecutor. "
                "The stack was taken afterwards."
            )
        elif held:
            event = "no thread of this worker ran or renewed leases"
            facts["cpu_seconds"] = round(cpu_seconds, 2)
            facts["remedy"] = (
                "Was the process stopped, or is the machine too busy? If a handler holds the GIL, "
                "run it in a process. The stack was taken afterwards."
            )
        elif "handler" in facts:
            event = "a handler blocks the event loop; another thread sends the heartbeats"
            facts["remedy"] = (
                "Make it a plain function, which runs in a thread, or await maitred.offload() for "
                "the part that blocks."
            )
        else:
            event = "the event loop has no turn; another thread sends the heartbeats"
            facts["remedy"] = (
                "No handler on the loop blocks it: threads that compute hold the GIL, or the "
                "machine is too busy."
            )
        self._log.warning(event, **facts)

    def freed(self, seconds: float) -> None:
        """Count and log the end of a block that lasted for so many seconds."""
        self._statistics.blocked_seconds += seconds
        if self._said:
            self._log.info("the event loop is not blocked any more", seconds=round(seconds, 2))

    def not_renewed(self, problem: MaitredError) -> None:
        """Log that a heartbeat failed while the loop was blocked, once for each block."""
        if not self._problem_said:
            self._problem_said = True
            self._log.warning(
                "leases are not renewed while the event loop is blocked; trying again",
                error=problem,
            )

    def _culprit(self) -> dict[str, Any]:
        """Return the name of the handler that runs on the loop, its attempt and its stack."""
        task = asyncio.current_task(self._loop)
        facts: dict[str, Any] = {}
        if task is not None:
            coroutine = task.get_coro()
            code = getattr(coroutine, "cr_code", None)
            if code is not None and not code.co_filename.startswith(_PACKAGE):
                # A task that a handler has made, unless it is found below.
                facts["handler"] = getattr(coroutine, "__qualname__", None)
            for attempt in self._attempts():
                if attempt.runs_as(task):
                    facts = dict(attempt.labels)
                    break
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - there is no other way
        if frame is not None:
            facts["stack"] = stack_of(frame)
        return facts


def stack_of(frame: FrameType) -> str:
    """Return the innermost frames as text, without those above the handler."""
    frames = traceback.extract_stack(frame)
    for at in range(len(frames) - 2, -1, -1):
        if frames[at].filename.replace("\\", "/").endswith(_OURS):
            frames = traceback.StackSummary.from_list(frames[at + 1 :])
            break
    lines = traceback.StackSummary.from_list(frames[-STACK_FRAMES:]).format()
    return "".join(lines)[-STACK_LETTERS:]
