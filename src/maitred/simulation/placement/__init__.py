"""The placement study: how evenly partitions spread, and how many move when hosts change."""

from maitred.simulation.placement.picture import draw
from maitred.simulation.placement.study import (
    PlacementSettings,
    PlacementStudy,
    placement_study,
)

__all__ = ["PlacementSettings", "PlacementStudy", "draw", "placement_study"]
