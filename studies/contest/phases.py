"""The contest's providers and phases, to the number, and the best that anybody could do.

Alibaba's middleware contest of 2019: three providers, whose permits and mean times change every six
seconds; permits always sum to 1,024, which is also the number of connections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

POOLS = (200, 450, 650)
"""Threads of the small, the medium and the large provider; a full pool refuses."""

CONNECTIONS = 1_024
TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ability:
    """What a provider can do in a phase: permits, and the mean of its exponential sleep."""

    permits: int
    average_ms: float

    @property
    def mean_seconds(self) -> float:
        """Sleeps are whole milliseconds, rounded up, so their mean is a little more."""
        return 1e-3 / (1.0 - math.exp(-1.0 / self.average_ms))

    @property
    def per_second(self) -> float:
        return self.permits / self.mean_seconds


def _phase(*abilities: tuple[int, float]) -> tuple[Ability, ...]:
    return tuple(Ability(permits, average) for permits, average in abilities)


PHASES = (
    _phase((109, 44.4), (411, 62.1), (504, 56.5)),
    _phase((148, 56.3), (392, 47.1), (484, 48.1)),
    _phase((108, 36.5), (331, 39.3), (585, 55.1)),
    _phase((147, 58.6), (365, 46.7), (512, 59.0)),
    _phase((121, 37.0), (423, 50.3), (480, 36.0)),
    _phase((136, 42.9), (370, 43.9), (518, 36.0)),
    _phase((101, 26.2), (418, 34.2), (505, 36.3)),
    _phase((110, 36.9), (379, 48.0), (535, 40.8)),
    _phase((116, 32.3), (345, 36.0), (563, 38.0)),
    _phase((135, 64.7), (355, 66.2), (534, 70.7)),
)


def best_per_second(abilities: Sequence[Ability], connections: int, delay_seconds: float) -> float:
    """The most that so many connections get out of the providers: the fastest is filled first.

    A connection that is served by a provider is of use for its mean time m, and on its way for the
    delay: n in service occupy n(1 + delay/m) connections.
    """
    left = float(connections)
    rate = 0.0
    for ability in sorted(abilities, key=lambda ability: ability.mean_seconds):
        mean = ability.mean_seconds
        served = min(float(ability.permits), left / (1.0 + delay_seconds / mean))
        rate += served / mean
        left -= served * (1.0 + delay_seconds / mean)
        if left <= 0.0:
            break
    return rate


def capacity_per_second(abilities: Sequence[Ability]) -> float:
    """What the providers could do if there was always enough to do."""
    return math.fsum(ability.per_second for ability in abilities)
