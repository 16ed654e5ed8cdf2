"""A model of a queue, its workers and its tree, on the real partition selectors."""

from studies.queue_model.checking import check_random_model, random_settings
from studies.queue_model.measures import Measures
from studies.queue_model.model import run_model
from studies.queue_model.queueing import ErlangC, single_queue_waits
from studies.queue_model.settings import InvalidModelSetting, ModelSettings

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
