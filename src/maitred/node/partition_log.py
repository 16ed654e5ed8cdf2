"""Log lines about what partitions notice: dead letters, lost leases, workers that go and return.

Thousands of tasks can die in a second, and a worker of a hundred queues is missed by a hundred
roots at once. So the lines of each queue have a budget, all queues together have one, and what the
roots of this shard notice of one worker within a second is one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.line_budget import LineBudgets, left_out
from maitred.matching import effects
from maitred.matching.attempt_proofs import session_of
from maitred.matching.failures import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.node.driver_shell import DriverShell
    from maitred.node.owned import Owned

BURST_LINES: Final = 20
"""Lines of one kind that a queue has at once; in the long run `LINE_SECONDS` between two."""

LINE_SECONDS: Final = 1.0

TOGETHER_LINES: Final = 200
"""Lines of one kind that all queues of a shard have at once; in the long run `TOGETHER_SECONDS`
between two."""

TOGETHER_SECONDS: Final = 0.1

GATHER_SECONDS: Final = 1.0
"""For how long news of one worker are gathered before they are logged."""

QUEUES_SHOWN: Final = 10
"""Most queues that a line about a worker names; it counts the others."""

WORKERS_GATHERED: Final = 1_000
"""Most workers of which news are gathered; the others have no line, and are counted."""

GONE: Final = "a worker is gone"
LEFT: Final = "a worker has left"
BACK: Final = "a worker is back"


class PartitionLog:
    """Logs for one shard what its partitions notice."""

    def __init__(self, shell: DriverShell) -> None:
        self._log = shell.log
        self._clock = shell.loop
        self._buried_lines = _budgets()
        self._lease_lines = _budgets()
        self._worker_lines = LineBudgets(LINE_SECONDS, BURST_LINES)
        """Budgets of the lines about workers that come and go, by event."""
        self._workers: dict[tuple[str, bytes], dict[str, Any]] = {}
        """What was gathered, by event and session."""
        self._queues: dict[tuple[str, bytes], list[str]] = {}
        self._ungathered = 0
        self.carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.Buried: self._buried,
            effects.LeasesEnded: self._leases_ended,
            effects.WorkerGone: self._worker_gone,
            effects.WorkerBack: self._worker_back,
        }

    # Tasks

    def _buried(self, owned: Owned, effect: effects.Buried) -> None:
        unlogged = self._buried_lines.take(_name(owned), self._clock.time())
        if unlogged is not None:
            key = owned.key
            self._log.warning(
                "a task became a dead letter",
                namespace=key.namespace,
                queue=key.queue,
                task=f"{_name(owned)}/{key.partition}/{effect.sequence}",
                attempts=effect.attempts,
                error=kind_of(effect.failure),
                **left_out(unlogged),
            )

    def _leases_ended(self, owned: Owned, effect: effects.LeasesEnded) -> None:
        unlogged = self._lease_lines.take(_name(owned), self._clock.time())
        if unlogged is not None:
            self._log.warning(
                "leases ended: their worker was not heard of",
                namespace=owned.key.namespace,
                queue=owned.key.queue,
                partition=owned.key.partition,
                tasks=effect.tasks,
                worker=effect.worker,
                session=session_of(effect.holder).hex()[:8],
                **left_out(unlogged),
            )

    # Workers

    def _worker_gone(self, owned: Owned, effect: effects.WorkerGone) -> None:
        event = LEFT if effect.orderly else GONE
        self._gather(owned, event, effect.session, {"worker": effect.worker})

    def _worker_back(self, owned: Owned, effect: effects.WorkerBack) -> None:
        fields = {"worker": effect.worker, "away_seconds": round(effect.seconds, 1)}
        self._gather(owned, BACK, effect.session, fields)

    def _gather(self, owned: Owned, event: str, session: bytes, fields: dict[str, Any]) -> None:
        if not self._workers:
            self._clock.call_at(self._clock.time() + GATHER_SECONDS, self._write_gathered)
        key = (event, session)
        if key not in self._workers and len(self._workers) >= WORKERS_GATHERED:
            self._ungathered += 1
            return
        self._workers.setdefault(key, fields)
        self._queues.setdefault(key, []).append(_name(owned))

    def _write_gathered(self) -> None:
        workers, self._workers = self._workers, {}
        gathered, self._queues = self._queues, {}
        ungathered, self._ungathered = self._ungathered, 0
        now = self._clock.time()
        for (event, session), fields in workers.items():
            queues = gathered[event, session]
            unlogged = self._worker_lines.take(event, now)
            if unlogged is None:
                continue
            fields |= {"session": session.hex()[:8], "queues": queues[:QUEUES_SHOWN]}
            if len(queues) > QUEUES_SHOWN:
                fields["other_queues"] = len(queues) - QUEUES_SHOWN
            write = self._log.warning if event == GONE else self._log.info
            write(event, **fields, **left_out(unlogged + ungathered))
            ungathered = 0
        self._ungathered += ungathered


def _name(owned: Owned) -> str:
    return f"{owned.key.namespace}/{owned.key.queue}"


def _budgets() -> LineBudgets:
    return LineBudgets(
        LINE_SECONDS, BURST_LINES, together_seconds=TOGETHER_SECONDS, together=TOGETHER_LINES
    )
