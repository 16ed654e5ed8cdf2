"""The study of the partition selectors, on a model of the queue, its workers and its tree."""

from studies.selection.picture import draw
from studies.selection.report import SelectionStudy
from studies.selection.study import SCENARIOS, SelectionSettings, selection_study

__all__ = ["SCENARIOS", "SelectionSettings", "SelectionStudy", "draw", "selection_study"]
