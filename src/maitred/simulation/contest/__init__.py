"""The contest of adaptive load balancing: the real worker policies against the best possible."""

from maitred.simulation.contest.measures import ContestMeasures
from maitred.simulation.contest.model import run_contest
from maitred.simulation.contest.phases import PHASES, Ability, best_per_second
from maitred.simulation.contest.picture import draw
from maitred.simulation.contest.promises import IDLE_PROMISES, PROMISES, promise
from maitred.simulation.contest.report import ContestStudy
from maitred.simulation.contest.scenarios import FAULT_SCENARIOS, SCENARIOS
from maitred.simulation.contest.settings import POLICIES, ContestModel
from maitred.simulation.contest.study import ContestSettings, contest_study

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
