"""A shard as a process: `python -m maitred.node.shard_process FILE`, started by a supervisor.

FILE is the number of the inherited socket on which the two talk (`control.py`). SIGTERM drains as
well: service managers send it to every process of a service. SIGINT and SIGHUP are blocked from the
start: a terminal sends them to the supervisor, too, which drains all processes.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maitred.errors import CannotStart, StoreUnavailable
from maitred.logs import logger
from maitred.node.control import Ready, Start
from maitred.node.exits import CUT_OFF, FINISHED
from maitred.node.garbage import spare_the_collector
from maitred.node.node_membership import node_tls
from maitred.node.shard import Shard
from maitred.node.shard_metrics import ShardMetrics
from maitred.node.shard_place import SERVICE
from maitred.node.supervisor_link import (
    SupervisorLink,
    run_child,
    set_title,
)
from maitred.security.audit_log import audit_log
from maitred.security.tls import ListenerTls
from maitred.store.engines import connect_membership, open_store
from maitred.surroundings import Surroundings
from maitred.telemetry.start import process_tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.logs import Logger
    from maitred.node.cluster_requests import OperatorsTable
    from maitred.store.interface import Store


STORE_PAUSE_SECONDS: Final = 0.5
"""Pause between two attempts to open a store that is unavailable."""

INCARNATION_BYTES: Final = 8
"""Random bytes that tell the owner of a partition from an earlier process of the same shard."""

SWITCH_SECONDS: Final = 0.0001
"""How long the loop's thread may keep the GIL when the store's thread wants it. The store's thread
does little between two calls that release the GIL; with the default of 5 ms, a busy loop with short
turns could delay the store for seconds."""


async def serve(link: SupervisorLink, start: Start, log: Logger) -> int:
    """Serve until stopped, and return the exit status; raise `MaitredError` if it cannot start."""
    place = start.place
    inherited = start.source_port_socket
    tls = None if start.settings.tls is None else ListenerTls(start.settings.tls)
    tracing = process_tracing(
        start.settings.telemetry,
        log,
        service=SERVICE,
        node=str(place.node),
        shard=place.number,
    )
    surroundings = Surroundings.real(tracing)
    audit = audit_log(start.settings, f"shard-{place.number}", log, surroundings.wall_clock)
    shard = Shard(
        place,
        start.settings,
        surroundings,
        log,
        audit=audit,
        tls=None if tls is None else tls.listening,
        reloadable=() if tls is None else (tls,),
        source_port_socket=None if inherited is None else socket.socket(fileno=inherited),
        reload_node=link.reload_node,
        peer_tls=node_tls(start.settings, log) if place.member else None,
    )
    stopped = link.follow(shard.reloading, shard if place.member else None)
    opening = asyncio.create_task(_open_store(start, log))
    await asyncio.wait((stopped, opening), return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        return FINISHED  # stopped before the shard had any request
    store = opening.result()
    partitions = shard.keep_tasks(store, _members(start, log))
    metrics = ShardMetrics(shard, partitions, start.settings.monitor, tracing)
    link.measure_with(metrics.measure)
    try:
        await shard.start()
    except OSError as problem:
        raise _cannot_listen(start, problem) from problem
    spare_the_collector()
    await link.say(Ready())
    is_orphan = await stopped
    if is_orphan:
        log.warning("the supervisor has ended; stopping")
    finished = await shard.drain()
    metrics.stop()
    if audit is not None:
        await audit.close()
    await store.close()
    if tracing is not None:
        await tracing.close()
    if is_orphan:
        _remove_peer_path(start)
    return FINISHED if finished else CUT_OFF


async def _open_store(start: Start, log: Logger) -> Store:
    """Open the store. The first start fails if the store is unavailable; a restarted shard waits
    for the store."""
    told = False
    member = start.place.member
    owner = f"{member}/{secrets.token_hex(INCARNATION_BYTES)}" if member else ""
    while True:
        try:
            data = Path(start.settings.data)
            return await open_store(
                start.settings.store, data, start.place.number, log, owner=owner
            )
        except StoreUnavailable as problem:
            if not start.place.restarts:
                raise
            if not told:
                log.warning("waiting for the store", error=problem)
                told = True
        await asyncio.sleep(STORE_PAUSE_SECONDS)


def _members(start: Start, log: Logger) -> Callable[[], Awaitable[OperatorsTable]] | None:
    """Return what opens the membership table; None without a cluster."""
    location, name = start.settings.store, start.settings.cluster.name
    if location is None or not start.place.member:
        return None

    async def connect() -> OperatorsTable:
        return connect_membership(location, name, log)

    return connect


def _cannot_listen(start: Start, problem: OSError) -> CannotStart:
    place = start.place
    if problem.errno == errno.EADDRINUSE:
        return CannotStart(
            f"One of the ports {place.port} and {place.own_ports[place.number]} on {place.host} "
            "is in use.",
            remedy="Name another one with --port; --port 0 finds some.",
        )
    return CannotStart(f"Shard {place.number} cannot listen: {problem}.")


def _remove_peer_path(start: Start) -> None:
    """Remove what a killed supervisor left: the shard's socket, and, by the last shard, the
    directory."""
    if start.place.peer_paths:
        path = Path(start.place.peer_paths[start.place.number])
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):
            path.parent.rmdir()


def _prepare(start: Start) -> Logger:
    sys.setswitchinterval(SWITCH_SECONDS)
    set_title(str(start.place.number))
    return logger(start.settings.log, shard=start.place.number)


def run() -> None:
    """Run the shard that a supervisor started."""
    run_child(Start, _prepare, serve)


if __name__ == "__main__":
    run()
