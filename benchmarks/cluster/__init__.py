"""A cluster under load, disturbed: `python -m benchmarks.cluster`, some 45 minutes.

Three real nodes on one PostgreSQL, each in a network namespace of its own (with root and iproute2;
otherwise on loopback addresses, and nothing is cut off), a worker, and a producer that sends
requests at a fixed rate to many queues, whether earlier ones were answered or not.

- A node is killed, frozen and cut off: how long until enqueues to its queues are served again, how
  long until its old backlog is handed out again, and what the users of other queues notice, against
  an equally long window just before.
- A node is drained and comes back: the longest that a request to its queues waits.
- All nodes are restarted one by one: errors.
- CPU per task of all maitred's processes with three nodes, against one node beside it that has the
  same load and as many shards.
- How long a new view takes to every shard.

`--quick` does each of these once or twice, which shows that it works, and nothing else.

`python -m benchmarks.cluster faults --faults 300` does not measure: it kills, freezes, drains and
cuts at random, and then says what was lost and which tasks ran again for no reason.

`python -m benchmarks.cluster failover` lets the primary of a PostgreSQL with Patroni fail.
"""
