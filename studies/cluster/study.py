"""Runs the three parts of the cluster study."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from studies.cluster.membership import membership_run
from studies.cluster.report import ClusterStudy
from studies.cluster.spread import spread_of
from studies.cluster.takeover import takeovers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from studies.cluster.settings import ClusterStudySettings

    Progress = Callable[[int, int, str], None]


def cluster_study(settings: ClusterStudySettings, progress: Progress) -> ClusterStudy:
    """Run the study; `progress(done, total, what)` is told before each step."""
    study = ClusterStudy(settings)
    steps: list[tuple[str, Callable[[], None]]] = []
    for size in settings.sizes:
        steps += _steps(study, size)
    for done, (what, act) in enumerate(steps):
        progress(done, len(steps), what)
        act()
    progress(len(steps), len(steps), "done")
    return study


def _steps(study: ClusterStudy, size: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the steps for one size, each with its name."""
    settings = study.settings

    def simulate(seed: int) -> None:
        study.membership.append(membership_run(settings, size, seed))

    def place(placement: str, batch_size: int) -> None:
        study.spreads.append(spread_of(settings, size, placement, batch_size))

    def take_over() -> None:
        study.takeovers.extend(takeovers_of(settings, size))

    if "membership" in settings.parts:
        for run in range(settings.runs_of(size)):
            what = f"membership of {size} nodes, run {run + 1}"
            yield what, partial(simulate, settings.seed + run)
    if "placement" in settings.parts:
        for placement, batch_size in settings.placements:
            what = f"placement on {size} nodes, {placement} {batch_size}"
            yield what, partial(place, placement, batch_size)
    if "takeover" in settings.parts:
        yield f"takeover with {size} nodes", take_over
