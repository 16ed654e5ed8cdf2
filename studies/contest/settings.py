"""Everything that can be set about one run of the contest."""

from __future__ import annotations

from dataclasses import dataclass

from maitred.balancing.workers import WORKER_POLICIES
from maitred.errors import UnknownAlgorithm
from studies.contest.faults import FAULTS
from studies.contest.phases import (
    CONNECTIONS,
    PHASES,
    POOLS,
    TIMEOUT_SECONDS,
    Ability,
    best_per_second,
    capacity_per_second,
)
from studies.queue_model.settings import InvalidModelSetting, check_number, check_whole

POLICIES = (*WORKER_POLICIES, "idle")
"""All that are compared; `idle` is a line in the middle that knows every free slot."""

OURS = ("adaptive", "idle")
"""Those whose workers measure themselves and whose gateways let queries wait for a moment."""


@dataclass(frozen=True, slots=True)
class ContestModel:
    """Providers, their phases, and who asks. Times in seconds."""

    policy: str = "adaptive"
    phases: tuple[tuple[Ability, ...], ...] = PHASES
    phase_seconds: float = 6.0
    pools: tuple[int, ...] = POOLS
    """Threads of each provider, and from the beginning again if there are more."""
    connections: int = CONNECTIONS
    """Each asks, waits for its answer and asks again; of no matter if there is a rate."""
    load: float | None = None
    """Arrivals by chance instead, at this share of what the providers can do in each phase."""
    rate_per_second: float | None = None
    """Or at this rate, whatever they can do."""
    bounded: bool = True
    """Whether a full thread pool refuses; else queries queue up inside without end."""
    gateways: int = 1
    delay_seconds: float = 0.001
    """From the gateway to the provider and back, both ways together."""
    timeout_seconds: float = TIMEOUT_SECONDS
    report_seconds: float = 0.1
    warm_seconds: float = 0.0
    """At the beginning; what ends before is not counted."""
    fault: str = "none"
    """What happens in the second third of the run."""
    victim: int = 0
    """To which provider, unless it happens to all of them."""
    high_share: float = 1.0
    """Of the queries that have the highest priority; the others have the lowest but one."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UnknownAlgorithm.named("worker policy", self.policy, POLICIES)
        if self.fault not in FAULTS:
            raise UnknownAlgorithm.named("fault", self.fault, FAULTS)
        if not self.phases or len({len(phase) for phase in self.phases}) != 1:
            raise InvalidModelSetting("The contest needs phases, all with the same providers.")
        if not self.pools or min(self.pools) < 1:
            raise InvalidModelSetting("The contest needs pools, each with a thread.")
        check_whole("victim", self.victim, 0, len(self.phases[0]) - 1)
        check_whole("connections", self.connections, 1, 100_000)
        check_whole("gateways", self.gateways, 1, 100)
        for name in ("phase_seconds", "delay_seconds", "timeout_seconds", "report_seconds"):
            check_number(name, getattr(self, name), above=0.0)
        check_number("warm_seconds", self.warm_seconds)
        if self.warm_seconds >= self.seconds:
            raise InvalidModelSetting("Nothing is left after warming up.")
        if self.load is not None:
            check_number("load", self.load, above=0.0)
        if self.rate_per_second is not None:
            check_number("rate_per_second", self.rate_per_second, above=0.0)

    @property
    def seconds(self) -> float:
        return self.phase_seconds * len(self.phases)

    @property
    def open_loop(self) -> bool:
        return self.load is not None or self.rate_per_second is not None

    def arrivals_per_second(self, phase: tuple[Ability, ...]) -> float:
        """Of an open loop."""
        if self.load is not None:
            return self.load * capacity_per_second(phase)
        return self.rate_per_second or 0.0

    def honest_per_second(self, asked: float) -> float:
        """Of what is asked while a fault lasts, what those can do whom it leaves alone."""
        fault, phase = FAULTS[self.fault], self.phases[len(self.phases) // 2]
        able = [
            ability
            for number, ability in enumerate(phase)
            if not fault.useless or not (fault.everybody or number == self.victim)
        ]
        if self.open_loop:
            if fault.everybody:
                asked *= 1.0 - fault.errors  # those that are nobody's fault could not be done
            return min(asked, capacity_per_second(able))
        return best_per_second(able, self.connections, self.delay_seconds)

    @property
    def bound_per_second(self) -> float:
        """What nobody can do better, on average over the phases; faults are not in it."""
        total = 0.0
        for number, phase in enumerate(self.phases):
            end = (number + 1) * self.phase_seconds
            counted = max(0.0, min(self.phase_seconds, end - self.warm_seconds))
            if self.open_loop:
                rate = min(self.arrivals_per_second(phase), capacity_per_second(phase))
            else:
                rate = best_per_second(phase, self.connections, self.delay_seconds)
            total += counted * rate
        return total / (self.seconds - self.warm_seconds)
