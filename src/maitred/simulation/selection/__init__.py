"""A model of a queue, its workers and its tree, on the real partition selectors."""

from maitred.simulation.selection.checking import check_random_model, random_settings
from maitred.simulation.selection.measures import Measures
from maitred.simulation.selection.model import run_model
from maitred.simulation.selection.queueing import ErlangC, single_queue_waits
from maitred.simulation.selection.settings import InvalidModelSetting, ModelSettings

__all__ = [
    "ErlangC",
    "InvalidModelSetting",
    "Measures",
    "ModelSettings",
    "check_random_model",
    "random_settings",
    "run_model",
    "single_queue_waits",
]
