"""Every metric of nodes and workers, those that gateways share with them, and errors of gateways.

docs/monitoring.md has this table for people; a test compares both with what is really exported.
Every name begins with `maitred_`, times are in seconds, sizes in bytes, and counters end in
`_total`. In a cluster each node exports what its own shards have, so the sums over nodes are right.
"""

from __future__ import annotations

from typing import Final

from maitred.metrics.exposition import Family

_QUEUE: Final = ("namespace", "queue", "shard")
_PARTITION: Final = ("namespace", "queue", "partition", "shard")
_WORKER_QUEUE: Final = ("namespace", "queue")

# Processes

PROCESS_UP: Final = Family(
    "maitred_process_up",
    "gauge",
    "1: this process of the node answers; 0: it is being started, or did not answer in time.",
    ("process",),
)
PROCESS_RESTARTS: Final = Family(
    "maitred_process_restarts_total",
    "counter",
    "How often the supervisor has started this process again after it died.",
    ("process",),
)
PROCESS_MEMORY: Final = Family(
    "maitred_process_memory_bytes", "gauge", "Memory of the process in RAM.", ("process",)
)
PROCESS_CPU: Final = Family(
    "maitred_process_cpu_seconds_total", "counter", "CPU time of the process.", ("process",)
)
LOOP_LAG: Final = Family(
    "maitred_loop_lag_seconds",
    "histogram",
    "By how much a timer on the event loop was late, four times a second.",
    ("process",),
)
SPANS_EXPORTED: Final = Family(
    "maitred_telemetry_spans_exported_total",
    "counter",
    "Spans that the receiver has taken; only with tracing.",
    ("process",),
)
SPANS_LOST: Final = Family(
    "maitred_telemetry_spans_lost_total",
    "counter",
    "Spans that the receiver refused or that waited in vain for it; only with tracing.",
    ("process",),
)
SPANS: Final = (SPANS_EXPORTED, SPANS_LOST)
PROCESSES: Final = (PROCESS_UP, PROCESS_RESTARTS, PROCESS_MEMORY, PROCESS_CPU, LOOP_LAG, *SPANS)

# Nodes

NODE_INFO: Final = Family(
    "maitred_node_info", "gauge", "Always 1; the labels name the node.", ("node", "release")
)
NODE_READY: Final = Family(
    "maitred_node_ready", "gauge", "1: all shards serve, and the node belongs to its cluster."
)
CLUSTER_MEMBERS: Final = Family(
    "maitred_cluster_members",
    "gauge",
    "Members of the cluster that this node knows, by state; none without a cluster.",
    ("state",),
)
QUEUES_NAMED: Final = Family(
    "maitred_queues_named", "gauge", "Queues that have series of their own.", ("shard",)
)
QUEUES_SUMMED: Final = Family(
    "maitred_queues_summed",
    "gauge",
    "Queues whose series are summed under the label :rest.",
    ("shard",),
)
PARTITIONS: Final = Family(
    "maitred_partitions_loaded", "gauge", "Partitions in the memory of the shard.", ("shard",)
)
CONNECTIONS: Final = Family(
    "maitred_shard_connections", "gauge", "Open connections of clients.", ("shard",)
)
IN_FLIGHT: Final = Family(
    "maitred_shard_requests_in_flight",
    "gauge",
    "Requests that are not answered yet, long polls included.",
    ("shard",),
)
REQUESTS: Final = Family(
    "maitred_shard_requests_total", "counter", "Requests that were answered.", ("shard",)
)
FORWARDED: Final = Family(
    "maitred_shard_forwarded_requests_total",
    "counter",
    "Requests that belong to another shard and were sent on to it.",
    ("shard",),
)
ERRORS: Final = Family(
    "maitred_errors_total",
    "counter",
    "Requests that were refused or failed, by the code of the error.",
    ("code", "shard"),
)
LOGINS: Final = Family(
    "maitred_shard_logins_total",
    "counter",
    "Logins by outcome: remembered, verified, wrong, or why they were refused unseen.",
    ("outcome", "shard"),
)
SHARED_SLOTS: Final = Family(
    "maitred_shared_slots_free",
    "gauge",
    "Free slots on offer to many queues together, each counted once.",
    ("shard",),
)
STORE_FAILING: Final = Family(
    "maitred_store_failing",
    "gauge",
    "1: the store cannot be written, or does not answer; tasks are refused.",
    ("shard",),
)
COMMITS: Final = Family(
    "maitred_store_commits_total", "counter", "Commits by outcome.", ("outcome", "shard")
)
COMMIT_SECONDS: Final = Family(
    "maitred_store_commit_seconds", "histogram", "How long a commit took.", ("shard",)
)
COMMIT_ROWS: Final = Family(
    "maitred_store_commit_rows",
    "histogram",
    "Rows that one commit wrote or deleted; a segment of many tasks is one row.",
    ("shard",),
)
HISTORY_TASKS: Final = Family(
    "maitred_store_history_tasks_total",
    "counter",
    "Tasks that ended in queues with a stored history, by outcome: stored, or lost before for want "
    "of memory.",
    ("outcome", "shard"),
)
DAMAGED: Final = Family(
    "maitred_store_damaged_total",
    "counter",
    "Rows of the store that could not be read and were set aside, and tasks in them.",
    ("kind", "shard"),
)
BACKLOG: Final = Family(
    "maitred_queue_backlog_tasks",
    "gauge",
    "Tasks that are not over and not at a worker, delayed ones included.",
    _QUEUE,
)
DELAYED: Final = Family(
    "maitred_queue_delayed_tasks",
    "gauge",
    "Tasks of the backlog that wait for their time: delays and retries.",
    _QUEUE,
)
OLDEST: Final = Family(
    "maitred_queue_oldest_seconds",
    "gauge",
    "For how long the first task of the backlog could have been run; 0 without one.",
    _QUEUE,
)
RUNNING: Final = Family("maitred_queue_running_tasks", "gauge", "Tasks that a worker has.", _QUEUE)
SLOTS_FREE: Final = Family(
    "maitred_queue_slots_free",
    "gauge",
    "Free slots on offer to the queue; slots on offer to several queues count at each of them.",
    _QUEUE,
)
QUERIES_WAITING: Final = Family(
    "maitred_queue_queries_waiting", "gauge", "Queries that wait for a slot here.", _QUEUE
)
SLOTS_WANTED: Final = Family(
    "maitred_queue_slots_wanted",
    "gauge",
    "Slots that the queue wants by its rates and its backlog, for autoscalers.",
    _QUEUE,
)
ADDED: Final = Family(
    "maitred_queue_tasks_added_total", "counter", "Tasks that were added.", _QUEUE
)
ENDED: Final = Family(
    "maitred_queue_tasks_ended_total",
    "counter",
    "Tasks that are over: done, failed, cancelled or expired.",
    ("namespace", "queue", "status", "shard"),
)
ATTEMPTS_FAILED: Final = Family(
    "maitred_queue_attempts_failed_total",
    "counter",
    "Attempts that failed, timed out, or whose worker was lost.",
    ("namespace", "queue", "cause", "shard"),
)
RETRIES: Final = Family(
    "maitred_queue_retries_total", "counter", "Attempts that are repeated later.", _QUEUE
)
DEAD_LETTERS: Final = Family(
    "maitred_queue_dead_letters_total", "counter", "Tasks that became dead letters.", _QUEUE
)
RETURNED: Final = Family(
    "maitred_queue_tasks_returned_total",
    "counter",
    "Tasks that a worker returned before it began them.",
    _QUEUE,
)
FORWARDS: Final = Family(
    "maitred_queue_forwards_total",
    "counter",
    "Tasks and offers that were passed on to a parent partition.",
    ("namespace", "queue", "what", "shard"),
)
OFFERS: Final = Family(
    "maitred_queue_offers_total",
    "counter",
    "Offers of free slots, without those to many queues together.",
    _QUEUE,
)
ALLOCATED: Final = Family(
    "maitred_queue_slots_allocated_total", "counter", "Slots reserved for queries.", _QUEUE
)
WAIT_SECONDS: Final = Family(
    "maitred_queue_wait_seconds",
    "histogram",
    "From when a task could be run until a worker was given it.",
    _QUEUE,
)
RUN_SECONDS: Final = Family(
    "maitred_queue_run_seconds",
    "histogram",
    "From giving a task to a worker until its end was reported.",
    _QUEUE,
)
PARTITION_BACKLOG: Final = Family(
    "maitred_partition_backlog_tasks", "gauge", "Like that of the queue.", _PARTITION
)
PARTITION_OLDEST: Final = Family(
    "maitred_partition_oldest_seconds", "gauge", "Like that of the queue.", _PARTITION
)
PARTITION_RUNNING: Final = Family(
    "maitred_partition_running_tasks", "gauge", "Like that of the queue.", _PARTITION
)
PARTITION_SLOTS_FREE: Final = Family(
    "maitred_partition_slots_free", "gauge", "Like that of the queue.", _PARTITION
)
PARTITION_ADDED: Final = Family(
    "maitred_partition_tasks_added_per_second",
    "gauge",
    "Moving average of the last seconds.",
    _PARTITION,
)
PARTITION_FINISHED: Final = Family(
    "maitred_partition_tasks_ended_per_second",
    "gauge",
    "Moving average of the last seconds.",
    _PARTITION,
)

NODE: Final = (
    NODE_INFO,
    NODE_READY,
    CLUSTER_MEMBERS,
    *PROCESSES,
    *(QUEUES_NAMED, QUEUES_SUMMED, PARTITIONS),
    *(CONNECTIONS, IN_FLIGHT, REQUESTS, FORWARDED, ERRORS, LOGINS, SHARED_SLOTS),
    *(STORE_FAILING, COMMITS, COMMIT_SECONDS, COMMIT_ROWS, HISTORY_TASKS, DAMAGED),
    *(BACKLOG, DELAYED, OLDEST, RUNNING, SLOTS_FREE, QUERIES_WAITING, SLOTS_WANTED),
    *(ADDED, ENDED, ATTEMPTS_FAILED, RETRIES, DEAD_LETTERS, RETURNED),
    *(FORWARDS, OFFERS, ALLOCATED, WAIT_SECONDS, RUN_SECONDS),
    *(PARTITION_BACKLOG, PARTITION_OLDEST, PARTITION_RUNNING, PARTITION_SLOTS_FREE),
    *(PARTITION_ADDED, PARTITION_FINISHED),
)
"""What the monitoring port of a node exports, in this order."""

# Workers

WORKER_INFO: Final = Family(
    "maitred_worker_info", "gauge", "Always 1; the labels name the worker.", ("worker", "release")
)
WORKER_READY: Final = Family(
    "maitred_worker_ready", "gauge", "1: the node knows the worker, which takes work."
)
WORKER_SLOTS: Final = Family("maitred_worker_slots", "gauge", "Slots of the worker.")
WORKER_BUSY: Final = Family("maitred_worker_slots_busy", "gauge", "Busy or reserved slots.")
WORKER_LIMIT: Final = Family(
    "maitred_worker_slots_limit",
    "gauge",
    "The measured limit: how many slots the worker uses at a time.",
)
WORKER_LIMIT_REASON: Final = Family(
    "maitred_worker_limit_reason",
    "gauge",
    "1 for the reason why the limit is not higher.",
    ("reason",),
)
WORKER_WAITING: Final = Family(
    "maitred_worker_calls_waiting",
    "gauge",
    "Attempts that wait for something inside of the worker, such as a thread.",
)
WORKER_BEGUN: Final = Family(
    "maitred_worker_begun_total", "counter", "Tasks and queries that were begun.", ("kind",)
)
WORKER_ENDED: Final = Family(
    "maitred_worker_ended_total",
    "counter",
    "Tasks and queries by how they ended.",
    ("outcome",),
)
WORKER_REFUSED: Final = Family(
    "maitred_worker_refused_total",
    "counter",
    "Tasks and queries that were not begun, by cause.",
    ("cause",),
)
WORKER_REPORTS: Final = Family(
    "maitred_worker_unwanted_ends_total",
    "counter",
    "Attempts whose end no longer counted, by cause.",
    ("cause",),
)
WORKER_OFFERS: Final = Family("maitred_worker_offers_total", "counter", "Offers that were sent.")
WORKER_RESERVED: Final = Family(
    "maitred_worker_reservations_unused_total",
    "counter",
    "Reservations that expired without a query.",
)
WORKER_BLOCKED: Final = Family(
    "maitred_worker_blocked_total", "counter", "How often a handler blocked the event loop."
)
WORKER_BLOCKED_SECONDS: Final = Family(
    "maitred_worker_blocked_seconds_total", "counter", "For how long handlers blocked the loop."
)
WORKER_STARVED: Final = Family(
    "maitred_worker_starved_seconds_total",
    "counter",
    "For how long other processes had the CPUs while the loop could have run.",
)
WORKER_QUEUE_RUNNING: Final = Family(
    "maitred_worker_queue_running", "gauge", "Tasks of the queue that run here.", _WORKER_QUEUE
)
WORKER_RUN_SECONDS: Final = Family(
    "maitred_worker_run_seconds",
    "histogram",
    "How long handlers ran, for tasks and queries.",
    _WORKER_QUEUE,
)
WORKER_QUEUES_SUMMED: Final = Family(
    "maitred_worker_queues_summed", "gauge", "Queues that are summed under the label :rest."
)

WORKER: Final = (
    *(WORKER_INFO, WORKER_READY, WORKER_SLOTS, WORKER_BUSY, WORKER_LIMIT, WORKER_LIMIT_REASON),
    *(WORKER_WAITING, WORKER_BEGUN, WORKER_ENDED, WORKER_REFUSED, WORKER_REPORTS),
    *(WORKER_OFFERS, WORKER_RESERVED, WORKER_BLOCKED, WORKER_BLOCKED_SECONDS, WORKER_STARVED),
    *(WORKER_QUEUE_RUNNING, WORKER_RUN_SECONDS, WORKER_QUEUES_SUMMED),
    *(PROCESS_MEMORY, PROCESS_CPU, LOOP_LAG, *SPANS),
)
"""What the monitoring port of a worker exports, in this order."""

# Gateways; the others of a gateway are where they are counted

GATEWAY_ERRORS: Final = Family(
    "maitred_gateway_errors_total",
    "counter",
    "Requests and queries that were refused or failed, by the code of the error.",
    ("code",),
)
