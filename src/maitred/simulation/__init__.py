"""The whole system under a virtual clock, on a network with injected faults."""

from maitred.simulation.errors import Violation
from maitred.simulation.faults import Faults
from maitred.simulation.hosts import Host
from maitred.simulation.loop import LoopLimits, SimulatedLoop
from maitred.simulation.process import Process
from maitred.simulation.world import World

__all__ = ["Faults", "Host", "LoopLimits", "Process", "SimulatedLoop", "Violation", "World"]
