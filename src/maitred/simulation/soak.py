"""Scenarios under many seeds; a failing seed is run again at once, to prove that it replays.

A failure that does not replay is worse than the failure: something outside the seed decides, and
no such run can be debugged. The report says so in capital letters.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context, parent_process

from maitred.errors import InvalidArgument, UnknownAlgorithm
from maitred.simulation.faults import Faults
from maitred.simulation.loop import LoopLimits
from maitred.simulation.world import World, collector_tamed

Scenario = Callable[[World], Awaitable[None]]
"""Builds what it needs in the world, lets it run, and raises if an invariant is broken."""

LIMITS = LoopLimits(max_events=5_000_000, max_virtual_seconds=86_400.0)
"""The limits of one run of one scenario."""

_CHUNK_SEEDS = 16
"""How many runs each process gets at a time; the outcomes come back in the order of the seeds."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How one scenario went under one seed."""

    scenario: str
    seed: int
    ok: bool
    error: str | None
    events: int
    virtual_seconds: float
    fingerprint: str
    replayed: bool | None = None
    """Whether the second run of a failure was the same to the last delivery; None if not run."""

    @property
    def replay_command(self) -> str:
        """The command that repeats this run."""
        return f"maitred simulate soak --scenario {self.scenario} --seed {self.seed}"

    def __str__(self) -> str:
        if self.ok:
            return (
                f"{self.scenario} seed {self.seed}: ok, {self.events:,} events, "
                f"{self.virtual_seconds:,.1f} virtual seconds, {self.fingerprint}"
            )
        text = f"{self.scenario} seed {self.seed}: FAILED after {self.events:,} events at "
        text += f"{self.virtual_seconds:.6f} s: {self.error}\n  replay: {self.replay_command}"
        if self.replayed is False:
            text += (
                "\n  THIS RUN DID NOT REPLAY: something besides the seed decides. Look for the "
                "real clock, unseeded randomness, and loops over sets."
            )
        return text


@dataclass(slots=True)
class SoakReport:
    """The counts and the failures of a soak."""

    runs: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    failures: list[RunOutcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every run succeeded."""
        return not self.failures

    def add(self, outcome: RunOutcome) -> None:
        """Count one run, and keep it if it failed."""
        self.runs += 1
        self.events += outcome.events
        self.virtual_seconds += outcome.virtual_seconds
        if not outcome.ok:
            self.failures.append(outcome)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        return (
            f"{self.runs:,} runs, {len(self.failures):,} failed; {self.events:,} events in "
            f"{self.virtual_seconds / 3600:,.1f} virtual hours"
        )

    def __str__(self) -> str:
        return "\n".join([*map(str, self.failures), self.summary])


def scenario_named(name: str, scenarios: Mapping[str, Scenario]) -> Scenario:
    """Return the scenario, or raise an error that lists the scenarios."""
    if name not in scenarios:
        raise UnknownAlgorithm.named("scenario", name, scenarios)
    return scenarios[name]


def run_seed(scenario: Scenario, seed: int, *, name: str | None = None) -> RunOutcome:
    """Run a scenario once; an error inside the world becomes part of the outcome."""
    with collector_tamed():  # else it would look through the world once more before its end
        outcome = _outcome(scenario, seed, name)
        # The world is full of cycles. Collected at once, its memory is used again while the
        # processor still has it in its cache; collecting ten worlds later takes twice as long.
        gc.collect(0)
    return outcome


def _outcome(scenario: Scenario, seed: int, name: str | None) -> RunOutcome:
    random = World.stream(seed, "faults")
    world = World(seed, faults=Faults.drawn(random), limits=LIMITS)
    error: str | None = None
    try:
        with world:
            world.run(_main(scenario, world))
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as caught:  # noqa: BLE001 - every error is this seed's outcome
        error = _described(caught)
    return RunOutcome(
        scenario=name or str(getattr(scenario, "__name__", "scenario")),
        seed=seed,
        ok=error is None,
        error=error,
        events=world.loop.events,
        virtual_seconds=world.loop.now,
        fingerprint=world.fingerprint(),
    )


def run_seed_proved(scenario: Scenario, seed: int, *, name: str | None = None) -> RunOutcome:
    """Do `run_seed`; run a failure a second time, and record whether it replayed."""
    outcome = run_seed(scenario, seed, name=name)
    if outcome.ok:
        return outcome
    again = run_seed(scenario, seed, name=name)
    return replace(outcome, replayed=again == outcome)


def soak(
    scenarios: Mapping[str, Scenario],
    seeds: Iterable[int],
    progress: Callable[[RunOutcome], None] | None = None,
    *,
    workers: int = 1,
) -> SoakReport:
    """Run every scenario under every seed; `progress` gets the outcomes in order.

    With more than one worker the scenarios have to be importable functions.
    """
    if workers < 1:
        raise InvalidArgument(f"{workers} workers cannot run anything.")
    jobs = ((scenarios[name], seed, name) for seed in seeds for name in scenarios)
    report = SoakReport()
    for outcome in _outcomes(jobs, workers):
        report.add(outcome)
        if progress is not None:
            progress(outcome)
    return report


def _outcomes(jobs: Iterator[tuple[Scenario, int, str]], workers: int) -> Iterator[RunOutcome]:
    if workers == 1:
        yield from map(_run_job, jobs)
        return
    # A spawned process imports everything again, which takes as long as several runs. A forked one
    # inherits this process's memory; no run may depend on it, since with one worker runs happen
    # here. Elsewhere than on Linux the system's own libraries may not survive a fork.
    method = "fork" if sys.platform == "linux" else "spawn"
    with ProcessPoolExecutor(
        workers, mp_context=get_context(method), initializer=_begin_worker
    ) as pool:
        try:
            yield from _in_rounds(pool, jobs, workers)
        except BaseException:
            # Ctrl-C, say: what runs is finished, which may take seconds; what waits is not begun.
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _in_rounds(
    pool: ProcessPoolExecutor, jobs: Iterator[tuple[Scenario, int, str]], workers: int
) -> Iterator[RunOutcome]:
    """Yield outcomes in rounds: map() would take all of an endless range of seeds at once."""
    pending: list[Iterator[RunOutcome]] = []
    while batch := list(islice(jobs, workers * _CHUNK_SEEDS)):
        with _interrupts_ignored():
            pending.append(pool.map(_run_job, batch))
        if len(pending) > 1:
            yield from pending.pop(0)
    for outcomes in pending:
        yield from outcomes


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in processes that are started in the block; this process handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there can handlers be set
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _begin_worker() -> None:
    gc.freeze()  # what was imported is no garbage: no collection needs to look at it
    _follow_parent()


def _follow_parent() -> None:
    """End with the parent, however it ends; else workers would stay on."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_job(job: tuple[Scenario, int, str]) -> RunOutcome:
    scenario, seed, name = job
    return run_seed_proved(scenario, seed, name=name)


async def _main(scenario: Scenario, world: World) -> None:
    await scenario(world)


def _described(error: BaseException) -> str:
    # Addresses in texts differ from run to run and say nothing.
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", str(error))
    return f"{type(error).__name__}: {text}"
