"""The ports of a node: held against others, and sorted by the client's source port."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import ExitStack, closing
from select import select
from typing import TYPE_CHECKING

import pytest

from maitred.errors import CannotStart
from maitred.logs import silent
from maitred.node import source_ports
from maitred.node.held_ports import QUIET, Endpoint, HeldPorts, resolve
from maitred.node.source_ports import open_source_port

if TYPE_CHECKING:
    from collections.abc import Iterator

IPV4 = Endpoint(socket.AF_INET, "127.0.0.1")
IPV6 = Endpoint(socket.AF_INET6, "::1", (0, 0))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def reservation() -> Iterator[HeldPorts]:
    with HeldPorts([IPV4]) as held:
        yield held


def shards_listener(port: int) -> socket.socket:
    """A socket as a shard makes it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


# Reservation


def test_a_held_port_is_for_our_shards_and_for_no_second_node(reservation: HeldPorts) -> None:
    port = reservation.hold(0)
    with HeldPorts([IPV4]) as other, pytest.raises(OSError, match="in use"):
        other.hold(port)  # not even before a shard listens
    with (
        closing(shards_listener(port)),
        closing(shards_listener(port)),
        HeldPorts([IPV4]) as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.hold(port)


def test_a_held_port_takes_no_connections(reservation: HeldPorts) -> None:
    port = reservation.hold(0)
    with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
        caller.connect(("127.0.0.1", port))
    with closing(shards_listener(port)) as listener:
        for _ in range(20):  # if half of them went to the holder, one of these would
            with socket.create_connection(("127.0.0.1", port), 5), listener.accept()[0]:
                pass


def test_old_connections_do_not_keep_a_node_from_coming_back() -> None:
    with HeldPorts([IPV4]) as held, ExitStack() as open_ones:
        port = held.hold(0)
        listener = shards_listener(port)
        for _ in range(2):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            accepted = listener.accept()[0]
            accepted.close()  # we close first: it lingers
        still_open = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        listener.close()
        held.__exit__(None, None, None)
        with HeldPorts([IPV4]) as again:
            assert again.hold(port) == port
        assert still_open.fileno() > 0


def test_a_block_that_was_asked_for_names_the_port_that_is_taken() -> None:
    with HeldPorts([IPV4]) as scout:
        port = scout.block(0, 3)
    with closing(shards_listener(port + 2)):
        with HeldPorts([IPV4]) as refused, pytest.raises(CannotStart) as problem:
            refused.block(port, 3)
        assert f"Port {port + 2} on 127.0.0.1, which is shard 1's, is in use." in str(problem.value)
        assert "4 in a row; --port 0 finds some" in str(problem.value)
        with HeldPorts([IPV4]) as smaller:
            assert smaller.block(port, 1) == port


def test_any_block_will_do_and_steps_over_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first three blocks that are tried, the middle port is taken."""
    tried: list[int] = []
    hold = HeldPorts.hold

    def hold_unlucky(self: HeldPorts, port: int) -> int:
        if len(tried) < 3 and self._ports:
            tried.append(port)
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return hold(self, port)

    monkeypatch.setattr(HeldPorts, "hold", hold_unlucky)
    with HeldPorts([IPV4]) as held:
        port = held.block(0, 2)
        monkeypatch.undo()
        assert len(tried) == 3
        for one in range(port, port + 3):
            with HeldPorts([IPV4]) as other, pytest.raises(OSError, match="in use"):
                other.hold(one)


@pytest.mark.parametrize("quiet_is_full", [False, True])
def test_blocks_are_looked_for_away_from_outgoing_connections_first(
    monkeypatch: pytest.MonkeyPatch, *, quiet_is_full: bool
) -> None:
    hold = HeldPorts.hold

    def hold_elsewhere(self: HeldPorts, port: int) -> int:
        if port in QUIET and quiet_is_full:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return hold(self, port)

    monkeypatch.setattr(HeldPorts, "hold", hold_elsewhere)
    with HeldPorts([IPV4]) as held:
        assert (held.block(0, 2) in QUIET) is not quiet_is_full


def test_no_block_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = HeldPorts.hold

    def hold_no_second(self: HeldPorts, port: int) -> int:
        if self._ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return hold(self, port)

    monkeypatch.setattr(HeldPorts, "hold", hold_no_second)
    with HeldPorts([IPV4]) as held, pytest.raises(CannotStart, match="no 3 free ports in a row"):
        held.block(0, 2)


@pytest.mark.parametrize(
    ("host", "said"), [("192.0.2.1", "no address of this machine"), ("nowhere.invalid", "has no")]
)
def test_hosts_that_are_not_here(host: str, said: str) -> None:
    with pytest.raises(CannotStart, match=said), HeldPorts(resolve(host)) as held:
        held.block(0, 1)


# Source ports


linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="NOT LINUX: source ports were not tried"
)


def reached(endpoint: Endpoint, port: int, sockets: list[socket.socket], source: int) -> int | None:
    """The number of the socket that a connection from that port reaches; None: port is taken."""
    with socket.socket(endpoint.family) as caller:
        try:
            caller.bind(endpoint.at(source))
        except OSError:
            return None
        caller.settimeout(5)
        caller.connect(endpoint.at(port))
        rung = select(sockets, [], [], 5)[0]
        assert len(rung) == 1
        rung[0].accept()[0].close()
        return sockets.index(rung[0])


@linux_only
@pytest.mark.parametrize("endpoint", [IPV4, IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_the_source_port_picks_the_shard(endpoint: Endpoint, shards: int) -> None:
    if endpoint is IPV6 and not has_ipv6():
        pytest.skip("NO IPv6 HERE: it was not tried")
    with HeldPorts([endpoint]) as held, ExitStack() as opened:
        port = held.block(0, shards, spare=1) + shards + 1
        sockets = open_source_port(held, [endpoint], port, shards, silent())
        assert len(sockets) == shards
        for one in sockets:
            opened.enter_context(one)
        seen = set()
        for source in range(port + 100, port + 100 + 4 * shards):
            number = reached(endpoint, port, sockets, source)
            if number is not None:
                assert number == source % shards
                seen.add(number)
        assert seen == set(range(shards))


class Heard:
    """A log that remembers reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def info(self, _event: str, **fields: object) -> None:
        self.reasons.append(str(fields["reason"]))


def reason_for_none(
    held: HeldPorts, port: int, *, shards: int = 2, endpoints: list[Endpoint] | None = None
) -> str:
    heard = Heard()
    assert open_source_port(held, endpoints or [IPV4], port, shards, heard) == []  # type: ignore[arg-type]
    (reason,) = heard.reasons
    return reason


def test_one_shard_needs_none(reservation: HeldPorts) -> None:
    assert open_source_port(reservation, [IPV4], 1, 1, silent()) == []


def test_what_keeps_it_from_working_is_said(
    reservation: HeldPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HeldPorts([IPV4]) as scout:
        port = scout.hold(0)
    assert reason_for_none(reservation, 65_536) == "there is no port above 65535"
    assert "several" in reason_for_none(reservation, 1, endpoints=[IPV4, IPV6])
    with closing(shards_listener(port)):
        assert reason_for_none(reservation, port) == "Address already in use"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert reason_for_none(reservation, port) == "it needs Linux"


@linux_only
def test_a_kernel_that_does_not_know_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ports, "SO_ATTACH_REUSEPORT_CBPF", 9_999)
    with HeldPorts([IPV4]) as held:
        port = held.block(0, 2, spare=1) + 3
        assert reason_for_none(held, port) == "Protocol not available"
    with closing(shards_listener(port)):
        pass  # nothing was left open


@linux_only
def test_the_trial_notices_connections_that_go_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the destination's port instead of the source's."""
    monkeypatch.setitem(source_ports.IP_HEADER_BYTES, socket.AF_INET, 22)
    with HeldPorts([IPV4]) as held:
        port = held.block(0, 3, spare=1) + 4
        assert "did not reach shard" in reason_for_none(held, port, shards=3)
    with closing(shards_listener(port)):
        pass  # nothing was left open
