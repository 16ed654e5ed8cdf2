"""The study of matching: the real partitions under a virtual clock, in Cadence's scenarios."""

from maitred.simulation.matching.measures import MatchingMeasures
from maitred.simulation.matching.model import run_matching
from maitred.simulation.matching.picture import draw
from maitred.simulation.matching.report import MatchingStudy
from maitred.simulation.matching.scenarios import SCENARIOS
from maitred.simulation.matching.settings import MatchingModel
from maitred.simulation.matching.study import MatchingSettings, matching_study

__all__ = [
    "SCENARIOS",
    "MatchingMeasures",
    "MatchingModel",
    "MatchingSettings",
    "MatchingStudy",
    "draw",
    "matching_study",
    "run_matching",
]
