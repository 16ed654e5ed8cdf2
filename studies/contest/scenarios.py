"""The contest itself, and what else can happen to workers and gateways.

Phases last a second instead of six, so that changes weigh six times as much and a run is short;
`--stretch 6` is the contest to the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from studies.contest.faults import FAULTS
from studies.contest.phases import PHASES, POOLS, Ability, capacity_per_second
from studies.contest.settings import POLICIES, ContestModel

if TYPE_CHECKING:
    from collections.abc import Mapping

SOME = ("two-phase", "adaptive", "idle")
"""For what is not the contest: the seed's, and ours; `--policy` adds others."""


FAULT_SCENARIOS = tuple(name for name in FAULTS if name not in ("none", "hung", "vanished"))
"""Faults that have a scenario of their name; two have one of the contest's size below."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who asks, what happens, and which policies are put to it."""

    sentence: str
    model: ContestModel
    policies: tuple[str, ...] = SOME


_CONTEST = ContestModel(phase_seconds=1.0)
_SHORT = replace(_CONTEST, phases=PHASES[:4])
_FIRST = PHASES[0]
_CAPACITY = capacity_per_second(_FIRST)
_CUT = (*_FIRST[:-1], Ability(_FIRST[-1].permits // 5, _FIRST[-1].average_ms))
_STEADY = replace(_CONTEST, phases=(_FIRST,) * 3, phase_seconds=1.5)

_TENTH = replace(
    _CONTEST,
    phases=(tuple(Ability(round(one.permits / 10), one.average_ms) for one in _FIRST),) * 3,
    phase_seconds=2.0,
    pools=tuple(pool // 10 for pool in POOLS),
    load=0.7,
)
"""A tenth of the contest's workers, for what does not need more of them."""


def _open(load: float) -> ContestModel:
    return replace(_SHORT, load=load, warm_seconds=0.5)


def _fault(name: str) -> Scenario:
    fault = FAULTS[name]
    return Scenario(
        f"a tenth of it, arrivals at 0.7; for a while {fault.sentence}",
        replace(_TENTH, fault=name),
        SOME if fault.matters_to_all else ("adaptive", "idle"),
    )


SCENARIOS: Mapping[str, Scenario] = {
    "contest": Scenario("1,024 connections, ten phases", _CONTEST, POLICIES),
    "unbounded": Scenario(
        "four phases; workers queue without end instead of refusing",
        replace(_SHORT, bounded=False),
    ),
    "open-0.7": Scenario("arrivals at 0.7 of the capacity, four phases", _open(0.7)),
    "open-0.95": Scenario("arrivals at 0.95 of the capacity", _open(0.95)),
    "open-1.2": Scenario("arrivals at 1.2 of the capacity", _open(1.2)),
    "priorities": Scenario(
        "the same, of which three in ten are of the highest priority",
        replace(_open(1.2), high_share=0.3),
    ),
    "drop": Scenario(
        "arrivals at 0.55; the largest worker has a fifth of its permits for a while",
        replace(_STEADY, phases=(_FIRST, _CUT, _FIRST), rate_per_second=0.55 * _CAPACITY),
    ),
    "hung": Scenario(
        "arrivals at 0.7; the smallest and fastest worker hangs for a while",
        replace(_STEADY, rate_per_second=0.7 * _CAPACITY, fault="hung"),
    ),
    "vanished": Scenario(
        "arrivals at 0.7; the same worker dies, and comes back",
        replace(_STEADY, rate_per_second=0.7 * _CAPACITY, fault="vanished"),
    ),
    "two-gateways": Scenario("the contest's first four phases", replace(_SHORT, gateways=2)),
    "eight-gateways": Scenario("the same", replace(_SHORT, gateways=8)),
    **{name: _fault(name) for name in FAULT_SCENARIOS},
}
