"""A node of two shards, and one client for ordinary code and for asyncio alike."""

import asyncio
import json
import subprocess
import sys
import tempfile

import maitred

QUEUES = ["orders", "thumbnails", "invoices", "mails"]


def ordinary(url: str) -> None:
    with maitred.connect(url) as client:
        for queue in QUEUES:
            answer = client.echo("shop", queue, b"hello")
            print(f"{queue} is served by shard {answer.shard}")
        try:
            client.echo("shop", "orders", b"slow", hold=5, timeout=0.05)
        except maitred.MaitredError as problem:
            print(f"what takes too long is a {problem.code}")


async def at_once(url: str) -> None:
    async with maitred.connect(url, timeout_seconds=30) as client:
        await client.covered()
        answers = await asyncio.gather(
            *(client.echo("shop", "orders", b"%d" % n, partition=n % 8) for n in range(1_000))
        )
        assert [answer.payload for answer in answers] == [b"%d" % n for n in range(1_000)]  # noqa: S101
        counted = client.statistics()
        print(counted.requests, "requests,", counted.misroutes, "to a wrong place")


with tempfile.TemporaryDirectory() as data:
    command = [sys.executable, "-m", "maitred", "up", "--json", "--shards", "2", "--port", "0"]
    with subprocess.Popen(  # noqa: S603 - it is our own command
        [*command, "--data", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        try:
            assert node.stdout  # noqa: S101
            url = json.loads(node.stdout.readline())["url"]
            ordinary(url)
            asyncio.run(at_once(url))
        finally:
            node.terminate()

# Prints:
# | orders is served by shard 1
# | thumbnails is served by shard 1
# | invoices is served by shard 1
# | mails is served by shard 0
# | what takes too long is a deadline-exceeded
# | 1000 requests, 0 to a wrong place
