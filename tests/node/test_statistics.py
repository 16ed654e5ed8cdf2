"""STATUS has the numbers of the shard's parts, as the parts tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.protocol.messages import ShardStatus, Status
from tests.node.in_process import in_a_loop, until
from tests.node.querying import SECONDS, stage, watch

if TYPE_CHECKING:
    from pathlib import Path


@in_a_loop
async def test_the_numbers_of_the_parts(tmp_path: Path) -> None:
    token = bytes(16)
    async with stage(tmp_path) as one:
        client = await one.client()
        await client.request(one.add(), SECONDS)
        client.hold(one.fetch(token), SECONDS).tell(lambda _: None)
        client.hold(watch(), SECONDS).tell(lambda _: None)
        shard = one.node.shard
        await until(lambda: shard.in_flight == 2)
        answer = await client.request(Status(0, 1_000), SECONDS)
        assert isinstance(answer, ShardStatus)
        parts = answer.parts
        assert parts.pop("writer")["commits"] >= 1
        assert parts.pop("partitions")["loaded"] == 1
        assert parts.pop("memory")["under_way_bytes"] == shard.under_way_bytes > 0
        assert parts == {
            "logins": {"waiting": 0},
            "permits": {"held": 0, "counted": 0, "waiting": 0},
            "relays": {"queries": 1, "not_fetched": 1},
            "query_tables": {"gateways": 1, "requests": 0},
            "series": {"queues": 0, "namespaces": 0},
            "worker_series": {"workers": 0},
        }
        assert repr(shard) == "<Shard 0: serving, 1 connections, 2 requests in flight>"
        assert repr(shard._partitions) == "<Partitions: 1 loaded, 0 loading>"
