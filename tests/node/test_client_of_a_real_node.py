"""The client against `maitred up`, while shards are killed."""

from __future__ import annotations

import os
import signal
from threading import Thread

import maitred
from maitred.routing.homes import Homes
from tests.node.nodes import running_node, wait_until


def partition_of(shard: int, shards: int) -> int:
    homes = Homes(shards)
    return next(n for n in range(1_000) if homes.home(("shop", "q", 1, n), 0).shard == shard)


def test_a_request_outlives_the_death_of_its_shard() -> None:
    """Its shard is started again within a second or so; a request has ten."""
    with running_node(shards=2) as node, maitred.connect(node.url) as client:
        lost, kept = partition_of(1, 2), partition_of(0, 2)
        assert client.echo("shop", "q", b"before", partition=lost).shard == 1
        os.kill(node.shards[1].pid, signal.SIGKILL)
        assert client.echo("shop", "q", b"meanwhile", partition=kept).shard == 0
        answer = client.echo("shop", "q", b"after", partition=lost)
        assert (answer.payload, answer.shard) == (b"after", 1)
        assert client.status(1).restarts == 1
        wait_until(
            lambda: [shard.connections for shard in client.statistics().nodes[0].shards] == [1, 1],
            "a connection to each shard again",
        )
        assert client.statistics().violations == 0


def test_requests_under_way_when_a_shard_dies_all_end() -> None:
    with running_node(shards=2) as node, maitred.connect(node.url) as client:
        lost = partition_of(1, 2)
        answers: list[object] = []

        def ask() -> None:
            try:
                answers.append(client.echo("shop", "q", b"held", partition=lost, hold=1.0))
            except maitred.MaitredError as problem:
                answers.append(problem.code)

        threads = [Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: client.status(1).in_flight >= 8, "all under way")
        os.kill(node.shards[1].pid, signal.SIGKILL)
        for thread in threads:
            thread.join(30)
        assert len(answers) == 8
        # An echo may be repeated, so the client has asked the shard's successor.
        assert all(getattr(answer, "payload", None) == b"held" for answer in answers), answers
