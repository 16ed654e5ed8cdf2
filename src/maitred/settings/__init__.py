"""Everything that can be set, in one schema: names, defaults, and the reason for each default.

A limit is a number with a name. A request beyond it is refused with a sentence, never slowed down
silently. Times are in seconds and sizes in bytes, as the ends of their names say.
"""

from maitred.settings.access import (
    Jwt,
    Limits,
    Namespace,
    QueryLimits,
    Tls,
    Tokens,
    User,
    WorkerAddresses,
)
from maitred.settings.basis import (
    HTTP_PORT,
    MONITOR_PORT,
    PORT,
    Permission,
    Schema,
)
from maitred.settings.clients import ClientSettings, Querying, Telemetry, Upstream, WorkerSettings
from maitred.settings.node import (
    Audit,
    ClusterSettings,
    GatewaySettings,
    Log,
    Monitor,
    Node,
    Restarts,
)
from maitred.settings.queues import Forwarding, History, QuerySettings, Queue, Scaling, Shedding

__all__ = [
    "HTTP_PORT",
    "MONITOR_PORT",
    "PORT",
    "Audit",
    "ClientSettings",
    "ClusterSettings",
    "Forwarding",
    "GatewaySettings",
    "History",
    "Jwt",
    "Limits",
    "Log",
    "Monitor",
    "Namespace",
    "Node",
    "Permission",
    "QueryLimits",
    "QuerySettings",
    "Querying",
    "Queue",
    "Restarts",
    "Scaling",
    "Schema",
    "Shedding",
    "Telemetry",
    "Tls",
    "Tokens",
    "Upstream",
    "User",
    "WorkerAddresses",
    "WorkerSettings",
]
