"""The study of matching: the real partitions under a virtual clock, in Cadence's scenarios."""

from studies.matching.measures import MatchingMeasures
from studies.matching.model import run_matching
from studies.matching.picture import draw
from studies.matching.report import MatchingStudy
from studies.matching.scenarios import SCENARIOS
from studies.matching.settings import MatchingModel
from studies.matching.study import MatchingSettings, matching_study

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
