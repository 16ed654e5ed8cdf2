"""Gateways and workers whose clocks differ by hours, with the real client and worker code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.balancing.workers import Adaptive
from maitred.simulation.scenarios.queries import queries_of
from maitred.simulation.soak import run_seed

if TYPE_CHECKING:
    from maitred.balancing.workers import LoadReport
    from maitred.simulation.world import World


@pytest.mark.parametrize(("kind", "seed"), [("calm", 11), ("storm", 12)])
def test_clocks_that_differ_do_no_harm(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[World] = []
    reports: list[LoadReport] = []
    reported = Adaptive.reported

    def listen(policy: Adaptive, worker: str, report: LoadReport, now: float) -> None:
        reports.append(report)
        reported(policy, worker, report, now)

    async def scenario(world: World) -> None:
        worlds.append(world)
        await queries_of(kind, world, "adaptive")

    monkeypatch.setattr(Adaptive, "reported", listen)
    outcome = run_seed(scenario, seed, name=kind)
    assert outcome.ok, str(outcome)
    hosts = worlds[0].network.hosts.values()
    skews = {host.name: host.clock_skew_seconds for host in hosts}
    assert skews["node"] == 0.0
    wrong = sorted(skews.values())
    assert wrong[-1] - wrong[0] > 3600.0, "somebody's clock is hours from another's"
    assert len(reports) > 50, "the policy heard from its workers"
    assert max(report.mean_service_seconds for report in reports) < 60.0, (
        "a duration of work, not the difference between two clocks"
    )
