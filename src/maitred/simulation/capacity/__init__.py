"""Capacity planning: the user's arrivals, work and workers on the real code, in virtual time."""

from maitred.simulation.capacity.picture import draw
from maitred.simulation.capacity.plan import CapacityPlan, capacity_plan
from maitred.simulation.capacity.service_times import ServiceTimes, service_times
from maitred.simulation.capacity.settings import (
    CapacitySettings,
    PlannedWorker,
    planned_workers,
)

__all__ = [
    "CapacityPlan",
    "CapacitySettings",
    "PlannedWorker",
    "ServiceTimes",
    "capacity_plan",
    "draw",
    "planned_workers",
    "service_times",
]
