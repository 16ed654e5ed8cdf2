"""What the simulated world refuses, and how a run in it can go wrong."""

from __future__ import annotations

from maitred.errors import MaitredError


class SimulationError(MaitredError):
    """Whatever the simulated world itself reports."""

    code = "simulation"


class NotSimulated(SimulationError, NotImplementedError):
    """A facility of real event loops that the simulated one leaves out."""

    code = "not-simulated"


class NoProcess(SimulationError):
    """Network code that runs outside every simulated process, and so on no host."""

    code = "no-process"


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the run is not finished."""

    code = "simulation-deadlock"


class TooManyEvents(SimulationError):
    """A run reached its limit of events; most likely something spins."""

    code = "simulation-too-many-events"


class TooMuchTime(SimulationError):
    """A run reached its limit of virtual time."""

    code = "simulation-too-much-time"


class ProcessKilled(SimulationError):
    """The process that the caller waited for was killed, or its host lost power."""

    code = "simulated-process-killed"


class ProcessFailed(SimulationError):
    """A process ended itself with an exit code other than 0."""

    code = "simulated-process-failed"


class UnhandledErrors(SimulationError):
    """Callbacks or tasks raised uncaught exceptions, which asyncio would only have logged."""

    code = "simulation-unhandled-errors"


class Violation(SimulationError):
    """A scenario found an invariant broken."""

    code = "simulation-violation"
