"""The contest of adaptive load balancing: the real worker policies against the best possible."""

from studies.contest.measures import ContestMeasures
from studies.contest.model import run_contest
from studies.contest.phases import PHASES, Ability, best_per_second
from studies.contest.picture import draw
from studies.contest.promises import IDLE_PROMISES, PROMISES, promise
from studies.contest.report import ContestStudy
from studies.contest.scenarios import FAULT_SCENARIOS, SCENARIOS
from studies.contest.settings import POLICIES, ContestModel
from studies.contest.study import ContestSettings, contest_study

__all__ = [
    "FAULT_SCENARIOS",
    "IDLE_PROMISES",
    "PHASES",
    "POLICIES",
    "PROMISES",
    "SCENARIOS",
    "Ability",
    "ContestMeasures",
    "ContestModel",
    "ContestSettings",
    "ContestStudy",
    "best_per_second",
    "contest_study",
    "draw",
    "promise",
    "run_contest",
]
