"""Choose the worker for a query: policies and shedding for gateways, limits for workers; pure."""

from maitred.balancing.workers.adaptive import Adaptive
from maitred.balancing.workers.estimator import EstimatorSettings, LimitEstimator
from maitred.balancing.workers.factory import WORKER_POLICIES, worker_policy
from maitred.balancing.workers.interface import Dispatch, LoadReport, QueryOutcome, WorkerPolicy
from maitred.balancing.workers.knee import KneeProber, KneeSettings
from maitred.balancing.workers.shedding import RetryBudget, Shed, SheddingLine, SheddingSettings

__all__ = [
    "WORKER_POLICIES",
    "Adaptive",
    "Dispatch",
    "EstimatorSettings",
    "KneeProber",
    "KneeSettings",
    "LimitEstimator",
    "LoadReport",
    "QueryOutcome",
    "RetryBudget",
    "Shed",
    "SheddingLine",
    "SheddingSettings",
    "WorkerPolicy",
    "worker_policy",
]
