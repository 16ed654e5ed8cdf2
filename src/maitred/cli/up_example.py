"""`maitred up --example`: a pool of workers beside the node, and what to try with it.

The workers are ordinary ones, in processes of their own. They start when the node is up and stop
before it, so that they finish their work and report it. A worker that ends is not restarted, since
a node does not manage workers; the log says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from maitred.cli.admin_list import all_queues
from maitred.cli.admin_worker_ask import present
from maitred.errors import CannotStart, InvalidArgument, MaitredError
from maitred.node.child_process import send_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.client import AsyncClient
    from maitred.logs import Logger
    from maitred.node.supervisor import StartedNode
    from maitred.routing.names import QueueId
    from maitred.settings import Node

WORKERS = 2
SLOTS = 4

START_SECONDS = 60.0
"""Longest start of the workers, which takes half a second on an idle machine."""

LOOK_SECONDS = 0.05

DRAIN_SECONDS = 5
"""How long the workers may finish their queries when the node is stopped; no one depends on
them."""

KILL_SECONDS = DRAIN_SECONDS + 5


class ExamplePool:
    """Starts and stops the workers, as a `Companion` of the node."""

    def __init__(self, url: Callable[[StartedNode], str], log: Logger) -> None:
        self._url = url
        self._log = log
        self._processes: list[asyncio.subprocess.Process] = []
        self._watching: list[asyncio.Task[None]] = []
        self._is_stopping = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def start(self, running: StartedNode) -> None:
        """Start the workers, and wait until they attend at their queues."""
        url = self._url(running)
        for number in range(1, WORKERS + 1):
            self._processes.append(await self._started(f"market-{number}", url))
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._until_there(url)
        except TimeoutError:
            raise CannotStart(
                f"The example's workers were not there after {START_SECONDS:g} s.",
                remedy="The log says what they do.",
            ) from None

    async def stop(self) -> None:
        """Stop the workers when they have finished their work; kill them if that takes too long."""
        self._is_stopping = True
        for process in self._processes:
            send_signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await asyncio.gather(*self._watching)
        except TimeoutError:
            self._log.warning("the example's workers do not stop; killed")
            await self.kill()

    async def kill(self) -> None:
        """Kill the workers, and wait for their end."""
        self._is_stopping = True
        for process in self._processes:
            send_signal(process, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def _started(self, name: str, url: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "maitred.cli.example_worker"),
            *("--name", name, "--slots", str(SLOTS), "--drain-seconds", str(DRAIN_SECONDS)),
            *("--log-level", "warning"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # The address is no argument, which other users could see in `ps`. A session of its own:
            # Ctrl-C is for the node, which stops the workers in their turn.
            env={**os.environ, "MAITRED_URL": url},
            start_new_session=True,
        )
        self._watching.append(asyncio.create_task(self._watch(process, name)))
        return process

    async def _watch(self, process: asyncio.subprocess.Process, name: str) -> None:
        status = await process.wait()
        if not self._is_stopping:
            self._log.warning(
                "a worker of the example has ended; it is not restarted",
                worker=name,
                status=status,
            )

    async def _until_there(self, url: str) -> None:
        from maitred.client.pending_client import PendingClient
        from maitred.routing.names import QueueId

        queues = [QueueId("default", name, 1) for name in QUEUES]
        while True:
            for process in self._processes:
                if process.returncode is not None:
                    raise CannotStart(
                        f"A worker of the example ended with {process.returncode}.",
                        remedy="The log says why.",
                    )
            with suppress(MaitredError):
                async with PendingClient(url, connect_seconds=START_SECONDS) as client:
                    if await _are_there(client, queues):
                        return
            await asyncio.sleep(LOOK_SECONDS)


async def _are_there(client: AsyncClient, queues: list[QueueId]) -> bool:
    """Return whether all workers attend at all queues. A queue is only asked for them once it
    exists: the first lines of the node's log would be about requests that it refused."""
    known, _, _ = await all_queues(client)
    if not known.issuperset(queues):
        return False
    there = await present(client, queues)
    return not there.silent and all(
        sum(queue in one.queues for one in there.workers) >= WORKERS for queue in queues
    )


QUEUES = ("EQUITY_MARKET_RDB", "EQUITY_MARKET_HDB", "EQUITY_MARKET_TICKS")


def check(settings: Node) -> None:
    """Raise `InvalidArgument` if workers need a user or TLS: the pool has neither."""
    if settings.authenticates or settings.tls is not None:
        raise InvalidArgument(
            "The example's workers cannot log in to a node with users or TLS.",
            remedy="Leave out --example, and start workers with `maitred worker`.",
        )


SQL = "select * from quote limit 3"


def print_next_steps(url: str, option: str, command: str, http_api: str | None) -> None:
    """The paper's session: a query, a service that is none, the query table."""
    click.echo(
        f"\n{WORKERS} workers with {SLOTS} slots each serve quotes and trades: {', '.join(QUEUES)}."
    )
    click.echo(
        "Try in another terminal: a query, a stream, a queue that does not exist, the tables.\n"
    )
    if http_api is not None:
        path = f"{http_api}/v1/default/queues"
        click.echo(f"  {_curl(f'{path}/{QUEUES[0]}/query', SQL)}")
        lines = " -N -H 'Accept: application/x-ndjson'"
        click.echo(f"  {_curl(f'{path}/{QUEUES[2]}/query', 'ACME', 5)}{lines}")
        click.echo(f"  {_curl(f'{path}/EQUITY_MARKET_RBD/query', SQL)}")
    click.echo(f"  {command} admin query list{option}")
    click.echo(f"  {command} admin worker list{option}")
    click.echo(f"  {command} status{option}")
    click.echo("\nor, in Python:\n")
    click.echo("  import maitred")
    click.echo(f'  with maitred.connect("{url}") as client:')
    click.echo(f'      print(client.query("{QUEUES[0]}", "{SQL}"))')
    click.echo(f'      for tick in client.stream("{QUEUES[2]}", "ACME", 5):')
    click.echo("          print(tick)")


def _curl(url: str, *arguments: object) -> str:
    return f"curl --json '{json.dumps(arguments)}' {url}"
