"""Two nodes behind one URL: every partition has its node and its shard, and answers from there."""

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import maitred
from maitred.routing import HashRing, QueueId, routes

# Places depend on the nodes' addresses, and these nodes get new ports each time. So that the story
# stays the same, it is told of the first queue that lies like this: node and shard by partition.
LAYOUT = [(0, 0), (1, 1), (1, 0), (0, 1)]


def start(stack: ExitStack) -> subprocess.Popen[str]:
    data = stack.enter_context(tempfile.TemporaryDirectory())
    command = [sys.executable, "-m", "maitred", "up", "--json", "--shards", "2", "--port", "0"]
    node = stack.enter_context(
        subprocess.Popen(  # noqa: S603 - it is our own command
            [*command, "--data", data],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    )
    stack.callback(node.terminate)
    return node


def url_of(node: subprocess.Popen[str]) -> str:
    assert node.stdout  # noqa: S101
    return str(json.loads(node.stdout.readline())["url"]).removeprefix("maitred://")


async def story(first: str, second: str) -> None:
    nodes = [first, second]
    ring = HashRing(nodes)
    for number in itertools.count():
        lies = routes(ring, QueueId("shop", f"queue-{number}", 1), len(LAYOUT), shards=2)
        if [(nodes.index(one.node), one.shard) for one in lies] == LAYOUT:
            break
    async with maitred.connect(f"maitred://{first},{second}") as client:
        await client.covered()  # a connection to each of the four shards
        for partition, (node, shard) in enumerate(LAYOUT):
            answer = await client.echo("shop", f"queue-{number}", b"hello", partition=partition)
            requests = client.statistics().nodes[node].shards[shard].requests
            print(f"partition {partition} lives on node {node}, shard {shard}:", end=" ")
            print(f"{requests} request went there, shard {answer.shard} answered")
        print(f"{client.statistics().misroutes} requests went to a wrong place")


with ExitStack() as stack:
    first, second = start(stack), start(stack)
    asyncio.run(story(url_of(first), url_of(second)))

# Prints:
# | partition 0 lives on node 0, shard 0: 1 request went there, shard 0 answered
# | partition 1 lives on node 1, shard 1: 1 request went there, shard 1 answered
# | partition 2 lives on node 1, shard 0: 1 request went there, shard 0 answered
# | partition 3 lives on node 0, shard 1: 1 request went there, shard 1 answered
# | 0 requests went to a wrong place
