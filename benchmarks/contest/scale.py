"""How large a run is, how long, and what the providers can do when. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from studies.contest.phases import (
    CONNECTIONS,
    PHASES,
    POOLS,
    TIMEOUT_SECONDS,
    Ability,
    best_per_second,
)

WARM_AVERAGE_MS = 50.0
"""Of the contest's warm-up, in which there are more permits than connections."""


@dataclass(frozen=True)
class Scale:
    """The contest, with permits, pools and connections divided, or with times multiplied."""

    name: str
    divided: int
    stretched: int
    phase_seconds: float
    warm_seconds: float
    delay_seconds: float
    """How long the delay of a way is measured."""

    @property
    def pools(self) -> tuple[int, ...]:
        return tuple(pool // self.divided for pool in POOLS)

    @property
    def connections(self) -> int:
        return CONNECTIONS // self.divided

    @property
    def timeout_seconds(self) -> float:
        return TIMEOUT_SECONDS * self.stretched

    @property
    def phases(self) -> tuple[tuple[Ability, ...], ...]:
        """Permits always sum to the number of connections, as in the contest."""
        return tuple(self._phase(phase) for phase in PHASES)

    def _phase(self, phase: tuple[Ability, ...]) -> tuple[Ability, ...]:
        permits = shared([float(one.permits) for one in phase], self.connections)
        averages = [one.average_ms * self.stretched for one in phase]
        return tuple(map(Ability, permits, averages))

    @property
    def calm(self) -> tuple[Ability, ...]:
        """The warm-up: a permit for every thread, so that nobody waits."""
        return tuple(Ability(pool, WARM_AVERAGE_MS * self.stretched) for pool in self.pools)

    @property
    def usual_permits(self) -> tuple[int, ...]:
        """The mean over the contest: the best that somebody can set once and for all."""
        columns = zip(*PHASES, strict=True)
        means = [sum(one.permits for one in column) / len(PHASES) for column in columns]
        return shared(means, self.connections)

    def bounds(self, delay_seconds: float) -> tuple[float, ...]:
        """The best for each phase, a second."""
        return tuple(
            best_per_second(phase, self.connections, delay_seconds) for phase in self.phases
        )


def shared(parts: list[float], total: int) -> tuple[int, ...]:
    """Whole numbers in these proportions that sum to the total: by largest remainder."""
    whole = sum(parts)
    exact = [part * total / whole for part in parts]
    found = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda at: found[at] - exact[at])
    for at in by_remainder[: total - sum(found)]:
        found[at] += 1
    return tuple(found)


QUICK = Scale("quick", 10, 1, phase_seconds=1.0, warm_seconds=1.5, delay_seconds=3.0)
SHORT = Scale("short", 10, 1, phase_seconds=6.0, warm_seconds=5.0, delay_seconds=15.0)
LONG = Scale("long", 1, 10, phase_seconds=60.0, warm_seconds=15.0, delay_seconds=60.0)
