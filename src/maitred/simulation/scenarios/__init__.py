"""The scenarios that run under many seeds; each raises when one of its invariants is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.simulation.scenarios.backpressure import backpressure
from maitred.simulation.scenarios.cluster import cluster
from maitred.simulation.scenarios.cluster_queries import cluster_queries
from maitred.simulation.scenarios.connections import connections
from maitred.simulation.scenarios.membership import membership
from maitred.simulation.scenarios.nodes import nodes
from maitred.simulation.scenarios.queries import queries
from maitred.simulation.scenarios.servers import servers
from maitred.simulation.scenarios.streams import streams
from maitred.simulation.scenarios.tasks import many_queues, tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.simulation.soak import Scenario

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "streams": streams,
    "connections": connections,
    "backpressure": backpressure,
    "servers": servers,
    "nodes": nodes,
    "membership": membership,
    "tasks": tasks,
    "many-queues": many_queues,
    "queries": queries,
    "cluster": cluster,
    "cluster-queries": cluster_queries,
}
