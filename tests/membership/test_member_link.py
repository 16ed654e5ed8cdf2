"""Links between supervisors: the proofs, and strangers at the port."""

from __future__ import annotations

import asyncio
import socket
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from msgspec import json
from msgspec.structs import replace

from maitred.errors import CannotStart
from maitred.logs import silent
from maitred.membership.member_effects import ProbeOutcome
from maitred.membership.view import MemberState
from maitred.node.member_agent import MemberAgent
from maitred.node.member_lines import LINE_MAX_BYTES, ProbeAnswer, ReachAnswer
from maitred.node.member_link import LinkKey, MemberLinks, ProbeFailure, dial, unreached_ports
from maitred.node.member_listener import (
    HANDSHAKE_SECONDS,
    IDLE_SECONDS,
    STRANGERS_MAX,
    MemberListener,
)
from maitred.security.cluster_proof import NONCE_BYTES
from maitred.security.tls import client_context, server_context
from maitred.settings import ClusterSettings, Tls
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.store import DiskFaults, SimulatedDisk
from maitred.simulation.world import World
from maitred.surroundings import Surroundings
from tests.membership.observing import member
from tests.node.in_process import LOOPS, held_port, in_a_loop, until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.node.member_lines import MemberAnswer, MemberRequest

SECRET = b"s" * 32
LISTENER = replace(member(1), host="listener")
PORT = LISTENER.member_port


class Desk:
    """Answers every request."""

    async def answer(self, request: MemberRequest) -> MemberAnswer:
        if type(request).__name__ == "ReachRequest":
            return ReachAnswer(known=True, unreached=[4748])
        return ProbeAnswer(LISTENER.id, "maitred", 7)


def key(secret: bytes = SECRET, known: tuple[str, ...] = ()) -> LinkKey:
    return LinkKey(secret, Random(1).randbytes, lambda: known)


async def listen() -> MemberListener:
    listener = MemberListener(
        member=LISTENER.id, cluster_secret=SECRET, random_bytes=Random(2).randbytes, desk=Desk()
    )
    await listener.start("", PORT)
    return listener


def between_hosts(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an `async def` in a process on another host than a listener."""

    def run() -> None:
        with World(3) as world:

            async def main() -> None:
                async def serve() -> None:
                    await listen()
                    await asyncio.get_running_loop().create_future()

                world.host("listener").spawn(serve)
                await asyncio.sleep(0.1)
                await world.host("dialler").spawn(test).wait()

            world.run(main())

    run.__doc__ = test.__doc__
    return run


def nothing(_: Any) -> None:  # noqa: ANN401
    """Ignore the end of a link."""


@between_hosts
async def test_two_members_prove_each_other_and_talk() -> None:
    lost: list[str] = []
    links = MemberLinks(key(), lost.append)
    assert await links.probe(LISTENER) is None
    assert await links.probe(LISTENER) is None, "over the same link"
    assert await links.unreached_by(LISTENER, "me") == (4748,)
    links.close()
    await asyncio.sleep(1.0)
    assert lost == [], "a link that is closed here is not lost"


@between_hosts
async def test_another_secret_is_a_stranger() -> None:
    found = await dial(key(b"x" * 32), LISTENER, nothing)
    assert isinstance(found, ProbeFailure)
    assert found.outcome is ProbeOutcome.STRANGER
    assert found.detail == "the process there does not prove that it belongs to this cluster"


@between_hosts
async def test_another_member_at_the_address_is_told_from_a_stranger() -> None:
    expected = replace(member(2), host="listener")
    found = await dial(key(known=(LISTENER.id,)), expected, nothing)
    assert isinstance(found, ProbeFailure)
    assert found.outcome is ProbeOutcome.WRONG_MEMBER
    found = await dial(key(), expected, nothing)
    assert isinstance(found, ProbeFailure)
    assert found.outcome is ProbeOutcome.STRANGER


@between_hosts
async def test_refused_silent_and_unknown_addresses() -> None:
    for host, port, outcome in (
        ("listener", PORT + 9, ProbeOutcome.REFUSED),
        ("10.9.9.9", PORT, ProbeOutcome.NO_ANSWER),
        ("no-such-host", PORT, ProbeOutcome.NO_ANSWER),
    ):
        found = await dial(key(), replace(LISTENER, host=host, member_port=port), nothing)
        assert isinstance(found, ProbeFailure)
        assert found.outcome is outcome


@between_hosts
async def test_the_ports_of_a_joining_member() -> None:
    joining = replace(LISTENER, port=PORT, shard_ports=(PORT, PORT + 1))
    assert await unreached_ports(key(), joining) == [PORT + 1]
    assert await unreached_ports(key(b"x" * 32), joining) == [PORT]


async def said(*lines: bytes) -> bytes:
    """What the listener says to a stranger until it closes the connection."""
    reader, writer = await asyncio.open_connection("listener", PORT)
    writer.write(b"".join(lines))
    answer = b""
    try:
        while piece := await reader.read(1_000):
            answer += piece
    except ConnectionError:
        pass
    writer.close()
    return answer


HELLO = json.encode({"type": "hello", "nonce": b"n" * NONCE_BYTES}) + b"\n"
PROOF = json.encode({"type": "proof", "proof": b"p" * 32}) + b"\n"
PROBE = b'{"type":"probe"}\n'


@pytest.mark.parametrize(
    "lines",
    [
        (b"GET / HTTP/1.1\r\n\r\n",),
        (b"\n",),
        (b"[" * 5_000 + b"\n",),
        (b"x" * (LINE_MAX_BYTES + 1),),
        (b"x" * (LINE_MAX_BYTES + 1) + b"\n",),
        (PROBE,),
        (PROOF,),
        (b'{"type":"hello","nonce":"bm9uY2U="}\n',),
        (b'{"type":"probed","member":"","cluster":"","version":1}\n',),
    ],
    ids=["http", "empty", "nested", "long", "long line", "probe", "proof", "nonce", "answer"],
)
def test_strangers_learn_nothing(lines: tuple[bytes, ...]) -> None:
    @between_hosts
    async def run() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await said(*lines) == b""
        assert loop.time() - began < 1.0, "it is closed at once"

    run()


@between_hosts
async def test_a_wrong_proof_ends_the_connection() -> None:
    for lines in ((HELLO, PROOF, PROBE), (HELLO, PROBE), (HELLO, HELLO)):
        answer = await said(*lines)
        assert answer.count(b"\n") <= 1, "a challenge, and no answer"
        assert LISTENER.id.encode() not in answer
        assert b"maitred" not in answer


@between_hosts
async def test_the_proof_of_the_listener_cannot_be_sent_back() -> None:
    reader, writer = await asyncio.open_connection("listener", PORT)
    writer.write(HELLO)
    challenge = json.decode(await reader.readline())
    writer.write(json.encode({"type": "proof", "proof": challenge["proof"]}) + b"\n" + PROBE)
    try:
        answer = await reader.read()
    except ConnectionError:
        answer = b""
    assert answer == b""
    writer.close()


@between_hosts
async def test_a_stranger_has_a_few_seconds() -> None:
    loop = asyncio.get_running_loop()
    for begin in (b"", HELLO, b'{"type":"hel'):
        began = loop.time()
        assert (await said(begin)).count(b"\n") <= 1
        assert HANDSHAKE_SECONDS <= loop.time() - began < HANDSHAKE_SECONDS + 0.1


@between_hosts
async def test_strangers_cannot_occupy_the_port() -> None:
    crowd = [await asyncio.open_connection("listener", PORT) for _ in range(STRANGERS_MAX + 20)]
    links = MemberLinks(key(), nothing)
    assert await links.probe(LISTENER) is None
    assert [await reader.read() for reader, _ in crowd[:20]] == [b""] * 20
    for _, writer in crowd:
        writer.close()
    links.close()


@between_hosts
async def test_an_idle_link_is_closed_and_the_dialler_is_told() -> None:
    lost: list[str] = []
    links = MemberLinks(key(), lost.append)
    assert await links.probe(LISTENER) is None
    await asyncio.sleep(IDLE_SECONDS + 1.0)
    assert lost == [LISTENER.id]


# Real sockets


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "authority"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(directory / "node")
    )
    trustme.CA().cert_pem.write_to_path(str(directory / "other"))
    return directory


class RealCluster:
    """Agents with real sockets in this loop, and one table in memory."""

    def __init__(self) -> None:
        faults = DiskFaults(delay_min_seconds=0.0, delay_max_seconds=1e-6)
        self.disk = SimulatedDisk(Random(1), faults)
        self.members = SimulatedMembers("maitred", Random(1))
        self.number = 0
        self.sockets: list[socket.socket] = []

    def agent(
        self,
        views: list[ClusterView],
        listen_tls: ssl.SSLContext | None = None,
        dial_tls: ssl.SSLContext | None = None,
    ) -> MemberAgent:
        self.number += 1
        bound, shared = held_port(), socket.create_server(("127.0.0.1", 0))
        self.sockets += [bound, shared]
        port = shared.getsockname()[1]
        me: ClusterMember = replace(
            member(self.number, MemberState.JOINING),
            host="127.0.0.1",
            port=port,
            shard_ports=(port,),
            member_port=bound.getsockname()[1],
        )
        return MemberAgent(
            table=SimulatedMemberTable(self.members, self.disk),
            me=me,
            settings=ClusterSettings(),
            surroundings=Surroundings.real(),
            log=silent(),
            load=lambda: 0.0,
            spread_batch="0",
            placement="wrap",
            on_view=views.append,
            on_lease=lambda _: None,
            listen_tls=listen_tls,
            dial_tls=None if dial_tls is None else lambda: dial_tls,
        )

    def close(self) -> None:
        for one in self.sockets:
            one.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@in_a_loop
async def test_two_agents_with_real_sockets(papers: Path, loop: str, with_tls: bool) -> None:  # noqa: ARG001
    authority, node = str(papers / "authority"), str(papers / "node")
    listen_tls = dial_tls = None
    if with_tls:
        tls = Tls(certificate=node, key=node, client_authorities=authority)
        listen_tls, dial_tls = server_context(tls), client_context(authority, node)
    cluster = RealCluster()
    views: list[list[ClusterView]] = [[], []]
    first, second = (cluster.agent(seen, listen_tls, dial_tls) for seen in views)
    await first.join()
    view = await second.join()
    assert [one.state for one in view.members] == [MemberState.ACTIVE] * 2
    await until(lambda: views[0][-1] == view)
    await second.leave()
    await second.gone()
    await until(lambda: len(views[0][-1].members) == 1)
    await first.gone()
    assert cluster.members.living == []
    cluster.close()


@in_a_loop
async def test_a_certificate_of_another_authority_is_refused(papers: Path) -> None:
    node = str(papers / "node")
    tls = Tls(certificate=node, key=node, client_authorities=str(papers / "authority"))
    cluster = RealCluster()
    agent = cluster.agent([], server_context(tls), client_context(str(papers / "other"), node))
    with pytest.raises(CannotStart, match=r"is not reached there.*certificate verify failed"):
        await agent.join()
    cluster.close()
