"""Map names to nodes, shards and partitions, with pure functions.

Everything here gives the same answer on every host: nothing reads a clock, a socket or a random
number. `routes` shows all of it at once; the command is `maitred route`.
"""

from maitred.routing.counts import PartitionCounts
from maitred.routing.fingerprint import fingerprint32
from maitred.routing.gradual import GradualChange, format_time, parse_time
from maitred.routing.keys import (
    RoutingKey,
    own_key,
    partition_name,
    routing_key,
)
from maitred.routing.names import QueueId
from maitred.routing.placement import PLACEMENTS, Place, place, place_all
from maitred.routing.ring import HashRing
from maitred.routing.routes import Flip, Route, flips, routes
from maitred.routing.tokens import shard_of, sharding, token
from maitred.routing.tree import children, depth, parent, path_to_root

__all__ = [
    "PLACEMENTS",
    "Flip",
    "GradualChange",
    "HashRing",
    "PartitionCounts",
    "Place",
    "QueueId",
    "Route",
    "RoutingKey",
    "children",
    "depth",
    "fingerprint32",
    "flips",
    "format_time",
    "own_key",
    "parent",
    "parse_time",
    "partition_name",
    "path_to_root",
    "place",
    "place_all",
    "routes",
    "routing_key",
    "shard_of",
    "sharding",
    "token",
]
