"""Well-formed requests, of which inputs choose and which they alter."""

from __future__ import annotations

from typing import Final

from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol.access import CreateToken, Introspect, ListTokens, Reload, RevokeToken
from maitred.protocol.cluster import DescribeCluster, DrainNode, HandOver, TellView
from maitred.protocol.cql import encode_query, encode_register, encode_startup, encode_token
from maitred.protocol.frames import Opcode
from maitred.protocol.gauge_series import ShowShardSeries, ShowWorkerSeries
from maitred.protocol.inspection import (
    ArgumentFilter,
    ChangeTasks,
    ListTasks,
    ShowTask,
    TaskFilter,
)
from maitred.protocol.messages import Echo, Status, encode
from maitred.protocol.queries import (
    Allocate,
    Attend,
    Count,
    Deliver,
    Fetch,
    Queries,
    Relay,
    Report,
    Running,
    Subscribe,
    Suspect,
    Watch,
    Workers,
)
from maitred.protocol.queue_overview import ListQueueStates, ShowSeries
from maitred.protocol.shared_offers import OfferMany, SetMember
from maitred.protocol.tasks import (
    Add,
    Await,
    ControlQueue,
    Counts,
    DamagedRows,
    DeadLetters,
    DeleteQueue,
    Describe,
    End,
    Finish,
    Forward,
    Heartbeat,
    Offer,
    PurgeTasks,
    Queues,
    Resize,
    Revoke,
    Signatures,
    Sync,
    Withdraw,
)
from maitred.protocol.worker_overview import ListWorkers, ShowWorkerTasks
from maitred.security.cluster_proof import NONCE_BYTES

VIEW: Final = ClusterView(
    cluster="c",
    version=2,
    members=(
        ClusterMember(
            id="0" * 16,
            node="node",
            host="127.0.0.1",
            port=4747,
            member_port=4751,
            shards=2,
            shard_ports=(4748, 4749),
            state=MemberState.ACTIVE,
            versions=(1,),
        ),
    ),
)
"""A view of a cluster with one member."""

FILTER: Final = TaskFilter("worker", "Error", "user", 1.0, 2.0, ArgumentFilter("0", b"\x01"))
"""Which tasks a list is about, with all that it may have."""

FRAME_BYTES: Final = 4_096
"""The limit of the shard that gets them."""

PARTS: Final[tuple[tuple[int, bytes], ...]] = (
    (Opcode.OPTIONS, b""),
    (Opcode.STARTUP, encode_startup({"CQL_VERSION": "3.0.0"})),
    (Opcode.REGISTER, encode_register(["STATUS_CHANGE", "MAITRED_DRAINING"])),
    (Opcode.QUERY, encode_query("SELECT * FROM system.local WHERE key='local'")),
    (Opcode.QUERY, encode_query("SELECT peer, rack FROM system.peers")),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 0, 1_000, b"payload"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 1_000, b"held", 900))),
    (Opcode.ECHO, encode(Echo("n:", "q", 1, 7, 1_000, b"no name"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 0, b"no time"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 1, b"x" * (FRAME_BYTES // 2 + 1)))),
    (Opcode.STATUS, encode(Status(0, 1_000))),
    (Opcode.STATUS, encode(Status(9, 1_000))),
    (Opcode.CANCEL, b""),
    (Opcode.CANCEL, b""),
    (Opcode.AUTH_RESPONSE, b"\0\0\0\x04\0u\0s"),
    (0x55, b""),
    # Tasks. The last two are for shards only.
    *(
        (message.opcode, encode(message))
        for message in (
            Add("n", "q", 1, 0, 1_000, 0, [b"one", b"two"]),
            Await("n", "q", 1, 0, 1_000, 2**32),
            Revoke("n", "q", 1, 0, 1_000, 2**32),
            Offer("n", "q", 1, 0, 900, 0, bytes(16), "worker", 2),
            Finish("n", "q", 1, 0, 1_000, bytes(16), [End(2**32, 1, bytes(16))]),
            Heartbeat("n", "q", 1, 0, 900, bytes(16), "worker", [(2**32, 1, bytes(16))]),
            Describe("n", "q", 1, 0, 1_000),
            Resize("n", "q", 1, 0, 1_000, 4, 2),
            DeadLetters("n", "q", 1, 0, 1_000, "list"),
            Queues(0, 1_000),
            Forward("n", "q", 1, 0, 1_000, 0, 1, 2**32, 1, 2, 0.0, b"payload", 0.0),
            Sync("n", "q", 1, 1, 1_000, Counts(4, 2, 1)),
            # Queries.
            Allocate("n", "q", 1, 0, 900, 0, bytes(16), 2, 1, 0.5, "user"),
            Attend("n", "q", 1, 0, 900, bytes(16), "worker", "192.0.2.1:4000", 2, 1),
            Suspect("n", "q", 1, 0, 1_000, bytes(16)),
            Workers("n", "q", 1, 0, 1_000, "offline", "worker"),
            Relay("n", "q", 1, 0, 900, bytes(16), 0, b"query"),
            Relay("n", "q", 1, 0, 900, bytes(16), 1),
            Fetch("n", "q", 1, 0, 900, bytes(16)),
            Fetch("n", "q", 1, 0, 900, bytes(16), running=True),
            Deliver("n", "q", 1, 0, 900, bytes(16), 0, Opcode.RUN, b"piece", more=False),
            Watch(0, 900, bytes(16), "gateway"),
            Report(0, 1_000, bytes(16), 1, []),
            Queries(0, 900, "list"),
            Subscribe("n", "q", 1, 0, 900, bytes(16), 0, "user"),
            Allocate("n", "q", 1, 0, 900, 0, bytes(16), do_not_queue=True),
            Running("n", "q", 1, 0, 900, bytes(16), {"user": [bytes(38)]}, {"user": [bytes(38)]}),
            Count(0, 900, {"user": [bytes(16)]}, {}, "user", 2, [bytes(16)]),
            # Access.
            CreateToken(0, 900, "user", 3_600.0, "label", {"n": ["query"]}),
            ListTokens(0, 900),
            RevokeToken(0, 900, "id"),
            Introspect(0, 900, "text"),
            Reload(0, 900),
            # Queues.
            DeleteQueue("n", "q", 1, 0, 900),
            Withdraw(0, 900, "n", "q", 1),
            Signatures("n", "q", 1, 0, 900, must_exist=True),
            # Shared offers.
            OfferMany("n", "q", 1, 0, 900, bytes(16), "worker", 2, 1, [SetMember("q", 1, 0, 0)]),
            OfferMany("n", "q", 1, 0, 900, bytes(16), "worker", 2, 1),
            DamagedRows("n", "q", 1, 0, 900, "retry", [("segment", 2**32)]),
            # The cluster.
            TellView(0, 900, VIEW),
            HandOver("n", "q", 1, 0, 900, 3),
            DescribeCluster(0, 900),
            DrainNode(0, 900, "127.0.0.1:4747"),
        )
    ),
    (
        Opcode.STARTUP,
        encode_startup({"CQL_VERSION": "3.0.0", "MAITRED_VERSION": "1", "MAITRED_ROLE": "node"}),
    ),
    (Opcode.AUTH_RESPONSE, encode_token(bytes(NONCE_BYTES))),
    (
        Opcode.CONTROL,
        encode(ControlQueue("n", "q", 1, 0, 900, "set", "why", 3, {"rate_per_second": 5.0})),
    ),
    (Opcode.PURGE, encode(PurgeTasks("n", "q", 1, 0, 900, "waiting", dry_run=True))),
    (Opcode.PURGE, encode(PurgeTasks("n", "q", 1, 0, 900, "dead", 60.0))),
    # Operators look at tasks and change them.
    *(
        (message.opcode, encode(message))
        for message in (
            ListTasks("n", "q", 1, 0, 900, "waiting", reveal=True),
            ListTasks("n", "q", 1, 0, 900, "delayed", FILTER, (1.0, 2**32), 10, reveal=True),
            ListTasks("n", "q", 1, 0, 900, "ended"),
            ShowTask("n", "q", 1, 0, 900, 2**32, reveal=True),
            ChangeTasks("n", "q", 1, 0, 900, "cancel", [2**32]),
            ChangeTasks("n", "q", 1, 0, 900, "again", [2**32, 2**32 + 1], "why"),
            ChangeTasks("n", "q", 1, 0, 900, "run-now", [2**32]),
        )
    ),
    (Opcode.SERIES, encode(ShowSeries(0, 900, "n", "q", 10))),
    (Opcode.QUEUE_STATES, encode(ListQueueStates(0, 900, "n", "q", "backlog", (7.0, "n", "q")))),
    (Opcode.LIST_WORKERS, encode(ListWorkers(0, 900, "n", "q", "w", ("worker", bytes(16))))),
    (Opcode.WORKER_TASKS, encode(ShowWorkerTasks(0, 900, [bytes(16)], "n"))),
    (Opcode.WORKER_SERIES, encode(ShowWorkerSeries(0, 900, bytes(16), "n"))),
    (Opcode.SHARD_SERIES, encode(ShowShardSeries(0, 900, 6))),
)
"""Opcodes and bodies. New ones come at the end: inputs choose them by number."""
