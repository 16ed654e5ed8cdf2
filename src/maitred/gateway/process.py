"""The process of a gateway: of a node (`python -m maitred.gateway.process FILE`, started by the
node's supervisor, like a shard), or stand-alone (`maitred gateway`).

A node's gateway talks to that node, as a user whose secret only the two know; to the other nodes of
a cluster it proves itself by the cluster's secret. A stand-alone gateway talks to the nodes at an
address, as the user that the address names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Final

from maitred.client.connection_attempt import MemberTerms
from maitred.client.credentials import ClusterLogin
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.logs import logger
from maitred.monitor.loop_lag import LoopLag
from maitred.node.control import Ready, StartGateway
from maitred.node.exits import CUT_OFF, FINISHED
from maitred.node.garbage import spare_the_collector
from maitred.node.node_reload import NodeReload, SettingsFile
from maitred.node.shard_requests import part_states
from maitred.node.supervisor_link import (
    SupervisorLink,
    raise_file_limit,
    run_child,
    set_title,
)
from maitred.protocol.access import ProcessState
from maitred.security.audit_log import audit_log
from maitred.security.exposed_files import warn_of_exposed_files
from maitred.security.tls import DiallerTls, ListenerTls, client_context
from maitred.security.users import GATEWAY
from maitred.surroundings import StopSignals, Surroundings
from maitred.telemetry.start import end_telemetry, export_metrics, process_tracing

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.logs import Logger
    from maitred.node.node_reload import SettingsSource
    from maitred.settings import Node, Tls, User

FIRST_SECONDS: Final = 30.0
"""How long a node's gateway tries to reach all shards before it logs an error: they start at the
same time, on a machine that may be busy. It goes on trying."""


SERVICE: Final = "maitred-gateway"
"""Name of this process for receivers of telemetry."""


def default_name() -> str:
    """Return the host name and process id, by which people recognise the gateway."""
    return f"{socket.gethostname()}:{os.getpid()}"


# Of a node


async def serve(link: SupervisorLink, start: StartGateway, log: Logger) -> int:
    """Serve until stopped, and return the exit status; raise `MaitredError` if it cannot start."""
    settings = start.settings
    tls = None if settings.tls is None else ListenerTls(settings.tls)
    scheme = "maitreds" if tls is not None else "maitred"
    name = default_name()
    tracing = process_tracing(settings.telemetry, log, service=SERVICE, gateway=name)
    surroundings = Surroundings.real(tracing)
    audit = audit_log(settings, "gateway", log, surroundings.wall_clock)
    user = f"{GATEWAY}:{start.secret}@" if settings.authenticates else ""
    gateway = Gateway(
        f"{scheme}://{user}{start.node}",
        settings,
        surroundings,
        log,
        audit=audit,
        name=name,
        tls=None if settings.tls is None else own_node_tls(settings.tls, log),
        reloadable=() if tls is None else (tls,),
        members=other_nodes(start, surroundings.secret, log),
    )
    stopped = link.follow(gateway.guard.reloading)
    listener = HttpListener(
        port=start.port,
        tls=None if tls is None else tls.listening,
        reuse=True,
        lag=LoopLag(asyncio.get_running_loop()),
    )
    await gateway.open(listener)
    exporting = export_metrics(
        settings.telemetry, log, listener.metrics_page, service=SERVICE, gateway=name
    )
    gateway.connect()
    reached = asyncio.create_task(gateway.reaches_shards.wait())
    failed = asyncio.create_task(gateway.failed())
    await asyncio.wait(
        (stopped, reached, failed),
        timeout=FIRST_SECONDS,
        return_when=asyncio.FIRST_COMPLETED,
    )
    reached.cancel()
    # The node accepts its own gateway's login, unless something interferes between the two. Then
    # the gateway is not announced, and its listener answers that there is no node.
    if failed.done():
        log.error("the node refuses the login of its gateway", error=failed.exception())
    elif not gateway.reaches_shards.is_set():
        log.error("the gateway does not reach its node; trying on", seconds=FIRST_SECONDS)
    spare_the_collector()
    await link.say(Ready(serves=gateway.reaches_shards.is_set()))
    if await stopped:
        log.warning("the supervisor has ended; closing the listeners")
    failed.cancel()
    finished = await gateway.drain(settings.drain_seconds)
    if audit is not None:
        await audit.close()
    await end_telemetry(tracing, exporting)
    return FINISHED if finished else CUT_OFF


def own_node_tls(tls: Tls, log: Logger) -> DiallerTls:
    """Return the TLS settings for connecting to the own node: its certificate is pinned, whatever
    name it has. Where clients need a certificate, the gateway sends the node's."""

    def make() -> ssl.SSLContext:
        context = client_context(tls.certificate, tls.certificate, tls.key)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def tell(problem: MaitredError) -> None:
        log.error("certificate not read again; the old state stays", error=problem)

    return DiallerTls(make, (tls.certificate, tls.key), tell)


def other_nodes(
    start: StartGateway, random: Callable[[int], bytes], log: Logger
) -> MemberTerms | None:
    """Return the terms of connections to the other nodes of the cluster; None without a cluster.
    Nodes without users let every client do what a gateway may do, so that no proof is needed."""
    settings = start.settings
    if not start.cluster_secret:
        return None
    secret = bytes.fromhex(start.cluster_secret)
    login = ClusterLogin(secret, "gateway", random) if settings.authenticates else None
    if settings.tls is None:
        return MemberTerms(login)
    return MemberTerms(login, other_nodes_tls(settings.tls, settings.cluster.authorities, log))


def other_nodes_tls(tls: Tls, authorities: str | None, log: Logger) -> DiallerTls:
    """Return the TLS settings for connecting to other nodes: the authorities of the cluster verify
    them, and they get this node's certificate. Nodes that share a machine may share a certificate
    and need no authorities."""
    if authorities is None:
        return own_node_tls(tls, log)

    def tell(problem: MaitredError) -> None:
        log.error("certificate not read again; the old state stays", error=problem)

    return DiallerTls(
        lambda: client_context(authorities, tls.certificate, tls.key),
        (authorities, tls.certificate, tls.key),
        tell,
    )


def _prepare(start: StartGateway) -> Logger:
    set_title("gateway")
    return logger(start.settings.log, gateway=os.getpid())


# Stand-alone


class _Alone:
    """A gateway that no supervisor reloads."""

    def __init__(self, gateway: Gateway) -> None:
        self._reloading = gateway.guard.reloading

    async def reload(self, users: dict[str, User] | None) -> ProcessState:
        return ProcessState("gateway", part_states(await self._reloading.reload(users)))


async def stand_alone(
    url: str,
    settings: Node,
    log: Logger,
    announce: Callable[[str], None],
    forced: Callable[[int], None],
    source: SettingsSource,
) -> bool:
    """Serve until a signal comes; return False if requests were cut off.

    The listener is open at once, and answers 503 until a node is found; `announce` is called when
    every shard of a node was reached. A second signal calls `forced` with its number, which is to
    end the process.
    """
    raise_file_limit()
    warn_of_exposed_files(settings, source.file, log)
    stopping = asyncio.Event()

    def force(number: int) -> None:
        log.warning("forced to stop", signal=signal.Signals(number).name)
        forced(number)

    StopSignals().watch(asyncio.get_running_loop(), stopping.set, force)
    tls = None if settings.tls is None else ListenerTls(settings.tls)
    name = default_name()
    tracing = process_tracing(settings.telemetry, log, service=SERVICE, gateway=name)
    surroundings = Surroundings.real(tracing)
    audit = audit_log(settings, "gateway-alone", log, surroundings.wall_clock)
    gateway = Gateway(
        url,
        settings,
        surroundings,
        log,
        audit=audit,
        name=name,
        reloadable=() if tls is None else (tls,),
    )
    lag = LoopLag(asyncio.get_running_loop())
    listener = HttpListener(tls=None if tls is None else tls.listening, lag=lag)
    address = await gateway.open(listener)
    exporting = export_metrics(
        settings.telemetry, log, listener.metrics_page, service=SERVICE, gateway=name
    )
    gateway.connect()
    file = SettingsFile(settings, source)
    watching = asyncio.create_task(NodeReload(file, lambda: [_Alone(gateway)], log).watch())
    failed = asyncio.create_task(gateway.failed())
    stopped = asyncio.create_task(stopping.wait())
    reached = asyncio.create_task(gateway.reaches_shards.wait())
    spare_the_collector()
    log.info("gateway listens", address=address)
    await asyncio.wait((reached, failed, stopped), return_when=asyncio.FIRST_COMPLETED)
    if reached.done():
        log.info("gateway is open", address=address)
        announce(address)
    await asyncio.wait((failed, stopped), return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    watching.cancel()
    if failed.done():
        stopped.cancel()
        await gateway.close()
        failed.result()
    failed.cancel()
    log.info("stopping; finishing requests in flight", drain_seconds=settings.drain_seconds)
    finished = await gateway.drain(settings.drain_seconds)
    if audit is not None:
        await audit.close()
    await end_telemetry(tracing, exporting)
    log.info("gateway has stopped")
    return finished


def run() -> None:
    """Run the gateway process that a supervisor started."""
    run_child(StartGateway, _prepare, serve)


if __name__ == "__main__":
    run()
