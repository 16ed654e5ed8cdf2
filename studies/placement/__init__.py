"""The placement study: how evenly partitions spread, and how many move when hosts change."""

from studies.placement.picture import draw
from studies.placement.study import (
    PlacementSettings,
    PlacementStudy,
    placement_study,
)

__all__ = ["PlacementSettings", "PlacementStudy", "draw", "placement_study"]
