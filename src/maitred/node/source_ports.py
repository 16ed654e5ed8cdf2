"""ScyllaDB's shard-aware port: the client's source port, modulo the shards, picks the shard.

Stock drivers reach a shard of their choice by binding their end of the connection to a fitting
port. The kernel distributes such connections: sockets that listen on one port with SO_REUSEPORT
form a group, in the order in which they began to listen, and a small classic BPF program, run for
each new connection, selects one of the group by the 16 bits at the start of the TCP header,
modulo N.

The supervisor opens these sockets, keeps them, and lets each shard inherit its own: so the order
stays when a shard is restarted, and connections for a shard that is down wait until it is back.

The port needs Linux. The supervisor tries it out before it announces the port.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from contextlib import ExitStack
from select import select
from typing import TYPE_CHECKING, Final

from maitred.node.held_ports import LOOPBACK, PORT_MAX, stream_socket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.logs import Logger
    from maitred.node.held_ports import Endpoint, HeldPorts

SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""From Linux's <asm-generic/socket.h>; Python has no name for it."""

SKF_NET_OFF: Final = -0x100000
"""From <linux/filter.h>: offsets below this are from the start of the IP header."""

IP_HEADER_BYTES: Final = {socket.AF_INET: 20, socket.AF_INET6: 40}
"""Sizes of headers without options. A packet with options still reaches some shard."""

LOAD_HALF_WORD: Final = 0x28  # BPF_LD | BPF_H | BPF_ABS
MODULO: Final = 0x94  # BPF_ALU | BPF_MOD | BPF_K
RETURN_ACCUMULATOR: Final = 0x16  # BPF_RET | BPF_A

BACKLOG: Final = 4_096
TRIAL_SECONDS: Final = 1.0
"""Time for a connection of the supervisor to itself, in a trial."""

TRIAL_PORTS: Final = 1_000
"""Source ports that are tried to find a free one with the right remainder."""


class _NotAsHoped(Exception):
    """The trial failed; the message says how."""


def open_source_port(
    reservation: HeldPorts, endpoints: Sequence[Endpoint], port: int, shards: int, log: Logger
) -> list[socket.socket]:
    """Return a listening socket for each shard, in order; none, and log why, where the port is not
    possible."""
    reason = None
    if shards == 1:
        return []  # every port is the shard's
    if not sys.platform.startswith("linux"):
        reason = "it needs Linux"
    elif len(endpoints) != 1:
        reason = "the host has several addresses"
    elif port > PORT_MAX:
        reason = f"there is no port above {PORT_MAX}"
    else:
        try:
            reservation.hold(port)
            return _group(endpoints[0], port, shards)
        except OSError as problem:
            reason = problem.strerror or str(problem)
        except _NotAsHoped as problem:
            reason = str(problem)
    log.info("no port on which the source port picks the shard", port=port, reason=reason)
    return []


def _group(endpoint: Endpoint, port: int, shards: int) -> list[socket.socket]:
    with ExitStack() as opened:
        sockets = []
        for number in range(shards):
            one = opened.enter_context(stream_socket(endpoint.family))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(endpoint.at(port))
            one.listen(BACKLOG)
            one.settimeout(0)
            if number == 0:
                _attach(one, endpoint.family, shards)  # counts for the whole group
            sockets.append(one)
        _try_out(endpoint, port, sockets)
        opened.pop_all()
    return sockets


def _attach(one: socket.socket, family: socket.AddressFamily, shards: int) -> None:
    source_port_at = (SKF_NET_OFF + IP_HEADER_BYTES[family]) & 0xFFFFFFFF
    program = b"".join(
        struct.pack("HBBI", code, 0, 0, operand)
        for code, operand in (
            (LOAD_HALF_WORD, source_port_at),
            (MODULO, shards),
            (RETURN_ACCUMULATOR, 0),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    one.setsockopt(
        socket.SOL_SOCKET,
        SO_ATTACH_REUSEPORT_CBPF,
        struct.pack("HL", len(program) // 8, ctypes.addressof(steps)),
    )


def _try_out(endpoint: Endpoint, port: int, sockets: Sequence[socket.socket]) -> None:
    """Connect to the first, the second and the last shard, twice each, and check which accepts."""
    shards = len(sockets)
    source = 0
    for wanted in sorted({0, 1, shards - 1}) * 2:
        with stream_socket(endpoint.family) as caller:
            source = _bind_to_fitting_port(caller, endpoint, source, wanted, shards)
            caller.settimeout(TRIAL_SECONDS)
            # A reset leaves nothing behind that would keep the port busy.
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.connect(_reachable(endpoint).at(port))
            rung = select(sockets, [], [], TRIAL_SECONDS)[0]
            for one in rung:
                one.accept()[0].close()
            if rung != [sockets[wanted]]:
                raise _NotAsHoped(f"a trial from port {source} did not reach shard {wanted}")


def _bind_to_fitting_port(
    caller: socket.socket, endpoint: Endpoint, start: int, wanted: int, shards: int
) -> int:
    if not start:
        with stream_socket(endpoint.family) as scout:
            scout.bind(_reachable(endpoint).at(0))
            start = scout.getsockname()[1]
    for candidate in range(start + 1, min(start + TRIAL_PORTS + shards, PORT_MAX)):
        if candidate % shards == wanted:
            try:
                caller.bind(_reachable(endpoint).at(candidate))
            except OSError:
                continue
            return candidate
    raise _NotAsHoped("no free source port was found for a trial")


def _reachable(endpoint: Endpoint) -> Endpoint:
    return endpoint._replace(host=LOOPBACK.get(endpoint.host, endpoint.host))
