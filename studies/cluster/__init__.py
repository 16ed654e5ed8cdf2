"""The cluster study: membership, placement and takeover with 3, 30 and 300 nodes."""

from studies.cluster.picture import draw
from studies.cluster.report import ClusterStudy
from studies.cluster.settings import QUICK, ClusterStudySettings
from studies.cluster.study import cluster_study

__all__ = ["QUICK", "ClusterStudy", "ClusterStudySettings", "cluster_study", "draw"]
