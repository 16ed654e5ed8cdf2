"""A gateway and a native client whose node is killed, or hangs, or loses a shard: real processes.

How soon callers are told is tested in virtual time (`tests/simulation/test_node_away.py`); here the
bounds are generous, and only what is said counts.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import maitred
from maitred.errors import MaitredError, NodeUnreachable
from tests.gateway.test_processes import call, standing_alone
from tests.node.nodes import wait_until
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUERY = "/v1/shop/queues/orders/query"
TASKS = "/v1/shop/queues/orders/tasks"
HASTE = "?heartbeat_timeout_seconds=1&silence_seconds=0.3"
"""A client that soon notices that its node hangs."""
ROUNDS_SECONDS = 60


def test_a_node_that_goes_away_is_told_by_gateways_and_clients(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.start_node(2)
        stage.start_worker("--slots", "2")
        url = stage.url + HASTE
        with (
            standing_alone("--url", url, "--set", "gateway.away_seconds=0.2") as (base, _),
            maitred.connect(url, away_seconds=0.2) as client,
        ):

            def answered() -> bool:
                return (
                    call(base, "POST", QUERY, [1])[0] == 200
                    and quietly(lambda: client.query("shop/orders", 1, timeout=10)) == 1
                )

            def told(path: str) -> str:
                status, said, headers = call(base, "POST", path, [1])
                if status == 503:
                    assert headers["retry-after"]
                return str(said["error"]["code"]) if status >= 400 else "done"

            def away() -> bool:
                native = quietly(lambda: client.query("shop/orders", 1, timeout=60))
                return (
                    isinstance(native, NodeUnreachable)
                    and told(QUERY) == "node-unreachable"
                    and told(TASKS) == "node-unreachable"
                )

            wait_until(answered, "a worker serves", ROUNDS_SECONDS)

            stage.kill_node()
            wait_until(away, "a node that was killed is away", ROUNDS_SECONDS)
            assert call(base, "GET", "/ready")[0] == 503
            assert "refused" in call(base, "POST", QUERY, [1])[1]["error"]["message"]
            stage.start_node(2)
            wait_until(answered, "the node is used again", ROUNDS_SECONDS)

            owner = stage.partitions("orders")[0].shard
            pids = {shard.number: shard.pid for shard in stage.node.shards}
            stopping: list[tuple[list[int], Callable[[], bool]]] = [
                ([0, 1], away),
                ([owner], away),
                ([1 - owner], answered),
            ]
            for shards, meanwhile in stopping:
                for shard in shards:
                    os.kill(pids[shard], signal.SIGSTOP)
                wait_until(meanwhile, f"the rest knows that {shards} hang", ROUNDS_SECONDS)
                for shard in shards:
                    os.kill(pids[shard], signal.SIGCONT)
                wait_until(answered, "the node is used again", ROUNDS_SECONDS)


def quietly(ask: Callable[[], object]) -> object:
    """What comes of it: a result, or the error."""
    try:
        return ask()
    except MaitredError as problem:
        return problem
