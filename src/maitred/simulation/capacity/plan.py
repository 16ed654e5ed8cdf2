"""The plan: the workers that were asked for, one fewer and one more, under the same arrivals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from maitred.simulation.capacity.measures import CapacityMeasures, measures
from maitred.simulation.capacity.run import CapacityRun
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.simulation.capacity.settings import CapacitySettings

ASKED = "as asked"
FEWER = "one fewer"
MORE = "one more"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The measures of each run, by name: `one fewer` unless there is one worker only, `as asked`,
    `one more`."""

    settings: CapacitySettings
    runs: dict[str, CapacityMeasures]

    def table(self) -> list[dict[str, object]]:
        """Return one row per run."""
        return [
            {
                "workers": f"{run.workers}, {name}",
                "slots": run.slots,
                "load %": 100 * run.load,
                "busy %": 100 * run.busy,
                "wait p50 ms": run.waits and 1e3 * run.waits.p50,
                "wait p99 ms": run.waits and 1e3 * run.waits.p99,
                "total p99 ms": run.totals and 1e3 * run.totals.p99,
                "done": run.done,
                "refused": sum(run.refused.values()),
            }
            for name, run in self.runs.items()
        ]

    def findings(self) -> list[str]:
        """Return the findings as sentences, and how many tasks or queries were simulated."""
        settings, asked = self.settings, self.runs[ASKED]
        skipped = settings.count - asked.measured
        said = [self._told(name, run) for name, run in self.runs.items()]
        for run in self.runs.values():
            if run.refused:
                codes = ", ".join(f"{count:,} {code}" for code, count in run.refused.items())
                said.append(
                    f"With {run.workers_in_words}, {sum(run.refused.values()):,} of "
                    f"{run.measured:,} {settings.work} ended with an error: {codes}."
                )
            if run.unfinished:
                said.append(
                    f"With {run.workers_in_words}, {run.unfinished:,} {settings.work} were never "
                    "done: no worker was left."
                )
        said.append(
            f"Each row is a run of {settings.count:,} {settings.work} (seed {settings.seed}) in "
            f"{_words(settings.count / settings.rate_per_second)}; the first {skipped:,} fill the "
            f"queue, and the other {asked.measured:,} are measured."
        )
        return said

    def _told(self, name: str, run: CapacityMeasures) -> str:
        who = f"{run.workers_in_words}, {name}"
        left = run.load_left
        if left is None:
            return f"{who}: every worker is lost."
        if left >= 1:
            those = "the workers" if run.load == left else "the workers that are left"
            follows = (
                "waits grow for as long as it lasts"
                if self.settings.policy == "idle"
                else "queries are refused"
            )
            return f"{who}: the load is {_percent(left)} of what {those} can do, so {follows}."
        begun = "none begins" if run.waits is None else f"99 % begin within {_words(run.waits.p99)}"
        return f"{who}: {begun}, and slots are busy {_percent(run.busy)} of the time."

    def as_json(self) -> dict[str, object]:
        """Return settings, measures and findings as JSON values; times are in seconds."""
        settings = asdict(self.settings)
        settings["service"] = {
            "text": self.settings.service.text,
            "mean_seconds": self.settings.service.mean_seconds,
        }
        runs = []
        for name, run in self.runs.items():
            numbers = asdict(run)
            del numbers["points"]
            runs.append({"name": name, "simulated": self.settings.count, **numbers})
        return {"settings": settings, "runs": runs, "findings": self.findings()}


def capacity_plan(
    settings: CapacitySettings, progress: Callable[[int, int, str], None]
) -> CapacityPlan:
    """Simulate one worker fewer, the workers as asked, and one more.

    `progress` gets the tasks or queries so far, how many there are in all, and the run.
    """
    plans = {FEWER: settings.with_fewer(), ASKED: settings, MORE: settings.with_more()}
    chosen = {name: plan for name, plan in plans.items() if plan is not None}
    total = len(chosen) * settings.count
    runs: dict[str, CapacityMeasures] = {}
    for name, plan in chosen.items():
        before = len(runs) * settings.count
        what = f"{len(plan.workers)} workers, {name}"

        def told(done: int, before: int = before, what: str = what) -> None:
            progress(before + done, total, what)

        with World(settings.seed) as world:
            run = CapacityRun(world, plan, told)
            world.run(run.run())
            runs[name] = measures(run)
        told(settings.count)
    return CapacityPlan(settings, runs)


def _words(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:,.0f} minutes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
