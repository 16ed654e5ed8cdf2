"""The errors of the simulated world: what it refuses, and how a run fails."""

from __future__ import annotations

from maitred.errors import MaitredError


class SimulationError(MaitredError, code="simulation"):
    """The base class of all errors of the simulated world."""


class NotSimulated(SimulationError, NotImplementedError, code="not-simulated"):
    """A facility of real event loops that the simulated one leaves out."""


class NoProcess(SimulationError, code="no-process"):
    """Network code that runs outside every simulated process, and so on no host."""


class Deadlock(SimulationError, code="simulation-deadlock"):
    """Nothing is ready, no timer is set, and the run is not finished."""


class TooManyEvents(SimulationError, code="simulation-too-many-events"):
    """A run reached its limit of events; most likely something spins."""


class TooMuchTime(SimulationError, code="simulation-too-much-time"):
    """A run reached its limit of virtual time."""


class ProcessKilled(SimulationError, code="simulated-process-killed"):
    """The process that the caller waited for was killed, or its host lost power."""


class ProcessFailed(SimulationError, code="simulated-process-failed"):
    """A process ended itself with an exit code other than 0."""


class UnhandledErrors(SimulationError, code="simulation-unhandled-errors"):
    """Callbacks or tasks raised uncaught exceptions, which asyncio would only have logged."""


class Violation(SimulationError, code="simulation-violation"):
    """A scenario found an invariant broken."""
