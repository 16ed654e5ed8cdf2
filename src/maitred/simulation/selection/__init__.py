"""The study of the partition selectors, on a model of the queue, its workers and its tree."""

from maitred.simulation.selection.checking import check_random_model, random_settings
from maitred.simulation.selection.measures import Measures
from maitred.simulation.selection.model import run_model
from maitred.simulation.selection.picture import draw
from maitred.simulation.selection.queueing import ErlangC, single_queue_waits
from maitred.simulation.selection.report import SelectionStudy
from maitred.simulation.selection.settings import InvalidModelSetting, ModelSettings
from maitred.simulation.selection.study import SCENARIOS, SelectionSettings, selection_study

__all__ = [
    "SCENARIOS",
    "ErlangC",
    "InvalidModelSetting",
    "Measures",
    "ModelSettings",
    "SelectionSettings",
    "SelectionStudy",
    "check_random_model",
    "draw",
    "random_settings",
    "run_model",
    "selection_study",
    "single_queue_waits",
]
