"""A process of another node proves that it belongs to the cluster; everybody else stays outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import TooManyConnections, Unauthenticated
from maitred.membership.view import ClusterView
from maitred.protocol import cql
from maitred.protocol.cluster import HandOver, TellView, decode_view
from maitred.protocol.frames import (
    EVENT_STREAM,
    HANDSHAKE_FRAME_BYTES,
    REQUEST,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.messages import REQUESTS, AnyRequest, decode_answer, encode
from maitred.protocol.queries import Count
from maitred.protocol.tasks import Counts, Sync, Withdraw
from maitred.security.cluster_proof import NONCE_BYTES, PROOF_BYTES, DiallerProof, cluster_proof
from maitred.security.users import GATEWAY
from maitred.settings import Audit, Limits, Permission, User
from tests.node.clusters import SECRET, cluster
from tests.node.in_process import in_a_loop, node, until
from tests.node.raw import echo, echoed_in, error_in, options, register, startup
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.clusters import ClusterUnderTest
    from tests.node.raw import RawClient

ALL: list[Permission] = ["admin", "produce", "work", "query"]
USERS = {"root": User(secret=cheaply("s"), permissions={"*": ALL})}
DIALLER = "d" * 16
NONCE = bytes(range(NONCE_BYTES))
EMPTY = ClusterView(cluster="test", version=99, members=())
BETWEEN_SHARDS: list[AnyRequest] = [
    TellView(0, 1000, EMPTY),
    HandOver("n", "q", 1, 0, 1000),
    Count(0, 1000),
    Sync("n", "q", 1, 0, 1000, Counts(1, 1, 0)),
    Withdraw(0, 1000, "n", "q", 1),
]


def token(body: bytes, stream: int = 0) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.AUTH_RESPONSE, cql.encode_token(body))


def request(message: AnyRequest, stream: int = 3) -> bytes:
    return encode_frame(REQUEST, 0, stream, message.opcode, encode(message))


def greeting(role: str = "node", version: str | None = "1") -> bytes:
    more: dict[str, Any] = {cql.ROLE: role, cql.MEMBER: DIALLER}
    return startup(version, **more)


async def challenged(client: RawClient, role: str = "node", nonce: bytes = NONCE) -> bytes:
    """The node's challenge for this nonce."""
    answer = await client.ask(greeting(role))
    assert answer.opcode == Opcode.AUTHENTICATE
    assert cql.decode_event(answer.body) == cql.CLUSTER_AUTHENTICATOR
    answer = await client.ask(token(nonce))
    assert answer.opcode == Opcode.AUTH_CHALLENGE
    return cql.decode_token(answer.body)


async def proven(there: ClusterUnderTest, role: str = "node", number: int = 0) -> RawClient:
    """A connection of a process that knows the secret."""
    client = await there.nodes[number].open()
    ours = DiallerProof(bytes.fromhex(SECRET), NONCE, role, there.nodes[number].member)
    answer = await client.ask(token(ours.answer(await challenged(client, role))))
    assert answer.opcode == Opcode.AUTH_SUCCESS
    return client


def refused(answer: Frame) -> str:
    return error_in(answer).code


@in_a_loop
async def test_a_shard_of_another_node_is_a_peer(tmp_path: Path) -> None:
    limits = Limits(in_flight=2)
    async with cluster(tmp_path, 2, users=USERS, limits=limits) as there:
        client = await proven(there)
        (accepted,) = there.shard(0).connections
        assert accepted.member == DIALLER
        assert there.shard(0).client_connections == 0
        newer = there.view(7)
        told = await client.ask(request(TellView(0, 1000, newer)))
        assert decode_answer(Opcode.TELL_VIEW, told.body).version == 7  # type: ignore[union-attr]
        assert there.shard(0).view_version == 7
        # Users are checked where they are connected; limits are those of a link.
        queue = there.queue_of(0)
        for stream in range(5):
            client.write(echo(queue, stream=stream, hold=1))
        assert {echoed_in(one).shard for one in (await client.frames(5)).values()} == {0}
        # It serves what it owns, and nothing else.
        client.write(echo(there.queue_of(1), stream=9))
        event = await client.frame()
        assert (event.stream, event.opcode) == (EVENT_STREAM, Opcode.EVENT)
        assert decode_view(cql.decode_view(event.body)) == newer
        assert refused(await client.frame()) == "not-owner"
        client.write(echo(there.queue_of(1), stream=9))  # the view is not sent twice
        assert refused(await client.frame()) == "not-owner"
        assert there.shard(0).forwarded == 0


@in_a_loop
async def test_a_gateway_of_another_node_is_a_gateway(tmp_path: Path) -> None:
    for number, users in enumerate((USERS, {})):
        path = tmp_path / str(number)
        path.mkdir()
        async with cluster(path, 2, users=users) as there:
            client = await proven(there, "gateway")
            (accepted,) = there.shard(0).connections
            assert accepted.user == GATEWAY
            assert accepted.is_gateway
            assert there.shard(0).client_connections == 1
            assert echoed_in(await client.ask(echo(there.queue_of(0)))).shard == 0
            for message in BETWEEN_SHARDS:
                if message.opcode in there.shard(0).handlers:
                    assert refused(await client.ask(request(message))) == "permission-denied"
            there.shard(0)._identities_changed()  # it is no user that can be removed
            assert echoed_in(await client.ask(echo(there.queue_of(0)))).shard == 0


@pytest.mark.parametrize("users", [USERS, {}])
@in_a_loop
async def test_no_user_may_send_what_shards_send(users: dict[str, User], tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, users=users) as there:
        shard = there.shard(0)
        for opcode in (Opcode.HAND_OVER, Opcode.COUNT, Opcode.SYNC, Opcode.WITHDRAW):
            shard.holders[opcode] = lambda *_: pytest.fail("it was served")
        client = await there.nodes[0].ready(0, *(("root", "s") if users else ()))
        for message in BETWEEN_SHARDS:
            assert refused(await client.ask(request(message))) == "permission-denied"
        assert shard.view_version == 1
        # Also on the way to another shard or node, where they would be trusted.
        elsewhere = HandOver("n", there.queue_of(1), 1, 0, 1000)
        assert refused(await client.ask(request(elsewhere))) == "permission-denied"
        assert shard.forwarded == 0


def test_the_requests_between_shards_are_all_here() -> None:
    """A new one has to be added to this test."""
    sent = {one.opcode for one in BETWEEN_SHARDS} | {Opcode.FORWARD}
    assert sent == {opcode for opcode, kind in REQUESTS.items() if kind.between_shards}


@in_a_loop
async def test_a_role_without_a_proof_is_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as there:
        shard = there.shard(0)
        client = await there.nodes[0].open()
        assert (await client.ask(greeting())).opcode == Opcode.AUTHENTICATE
        for message in BETWEEN_SHARDS:
            answer = await client.ask(request(message))
            assert "handshake comes before" in error_in(answer).sentence
        # No frame larger than a stranger's, no user's credentials instead.
        assert refused(await client.ask(token(b"\0root\0s"))) == "protocol-violation"
        assert (await client.ask(options())).opcode == Opcode.SUPPORTED
        assert refused(await client.ask(greeting())) == "protocol-violation"
        client.write(token(bytes(HANDSHAKE_FRAME_BYTES)))
        assert (await client.last_words()).code == "frame-too-large"
        assert shard.view_version == 1
        assert shard.received_forwarded == 0


@in_a_loop
async def test_a_wrong_proof_ends_the_connection(tmp_path: Path) -> None:
    audit = Audit(directory=str(tmp_path / "audit"))
    async with cluster(tmp_path, 2, users=USERS, audit=audit) as there:
        shard = there.shard(0)
        secret, own = bytes.fromhex(SECRET), there.nodes[0].member

        async def tries(shown: bytes) -> None:
            client = await there.nodes[0].open()
            await challenged(client)
            client.write(token(shown))
            assert (await client.last_words()).code == "unauthenticated"

        for shown in (b"", bytes(PROOF_BYTES), bytes(PROOF_BYTES * 2)):
            await tries(shown)

        async def with_proof(key: bytes, direction: str, role: str, listener: str) -> None:
            client = await there.nodes[0].open()
            challenge = await challenged(client)
            shown = cluster_proof(
                key,
                direction,  # type: ignore[arg-type]
                dialler_nonce=NONCE,
                listener_nonce=challenge[:NONCE_BYTES],
                role=role,
                listener=listener,
            )
            client.write(token(shown))
            assert (await client.last_words()).code == "unauthenticated"

        await with_proof(bytes(32), "dialler", "node", own)  # of another cluster
        await with_proof(b"", "dialler", "node", own)
        await with_proof(secret, "listener", "node", own)  # the node's own proof, sent back
        await with_proof(secret, "dialler", "gateway", own)  # for another role
        await with_proof(secret, "dialler", "node", there.nodes[1].member)  # for another member
        # A proof that was right once, for other nonces.
        client = await there.nodes[0].open()
        ours = DiallerProof(secret, NONCE, "node", own)
        right = ours.answer(await challenged(client))
        assert (await client.ask(token(right))).opcode == Opcode.AUTH_SUCCESS
        await tries(right)
        assert shard.authenticator.outcomes["wrong"] == 9
        warned = [one for one in there.nodes[0].log.lines if one[1] == "authentication failed"]
        assert 1 <= len(warned) <= 3
        assert warned[0][2]["user"] == "cluster node"
        assert shard.received_forwarded == 0
        assert shard.audit is not None
        await shard.audit.close()
        told = "".join(one.read_text() for one in (tmp_path / "audit").iterdir())
        assert told.count("cluster node") == 9


@in_a_loop
async def test_a_listener_that_does_not_know_the_secret_is_told_nothing(tmp_path: Path) -> None:
    """Nor one that is another member: an address in the table is no proof."""
    async with cluster(tmp_path, 2) as there:
        for key, listener in (("00" * 32, there.nodes[0].member), (SECRET, there.nodes[1].member)):
            client = await there.nodes[0].open()
            ours = DiallerProof(bytes.fromhex(key), NONCE, "node", listener)
            with pytest.raises(Unauthenticated, match="did not prove to be member"):
                ours.answer(await challenged(client))
            with pytest.raises(Unauthenticated):
                ours.answer(b"short")


@in_a_loop
async def test_what_is_out_of_place(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, adopted=False) as there:
        client = await there.nodes[0].open()
        assert "no role 'king'" in error_in(await client.ask(greeting("king"))).sentence
        problem = error_in(await client.ask(greeting(version=None)))
        assert "MAITRED_VERSION" in problem.sentence
        await client.handshake()  # it may still be a client
    async with node(tmp_path) as running:
        client = await running.open()
        problem = error_in(await client.ask(greeting()))
        assert "belongs to no cluster" in problem.sentence
        assert refused(await client.ask(token(NONCE))) == "protocol-violation"


@in_a_loop
async def test_a_handshake_that_is_not_finished_ends(tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=0.1)
    async with cluster(tmp_path, 1, limits=limits) as there:
        client = await there.nodes[0].open()
        await challenged(client)
        await client.last_words()
        await until(lambda: not there.shard(0).connections)


@in_a_loop
async def test_who_registers_gets_the_view_and_each_newer_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        first = await there.nodes[0].ready()
        assert (await first.ask(register(cql.DRAINING))).opcode == Opcode.READY
        assert (await first.ask(register(cql.VIEW))).opcode == Opcode.READY
        assert await pushed(first) == there.view(1)
        await first.ask(register(cql.VIEW))  # again: it is not sent twice
        crowd = [await there.nodes[0].ready() for _ in range(3)]
        silent = await there.nodes[0].ready()
        for one in crowd:
            assert (await one.ask(register(cql.VIEW))).opcode == Opcode.READY
            assert (await pushed(one)).version == 1
        there.adopt(there.view(2))
        for one in (first, *crowd):
            assert await pushed(one) == there.view(2)
        await silent.lives()
        there.adopt(there.view(3))
        there.adopt(there.view(4))
        seen = await pushed(first)
        assert seen.version == 4 or (await pushed(first)).version == 4
        await first.lives()


@in_a_loop
async def test_a_view_that_comes_after_the_registration(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, adopted=False) as there:
        client = await there.nodes[0].ready()
        assert (await client.ask(register(cql.VIEW))).opcode == Opcode.READY
        await client.lives()
        there.adopt(there.view(1))
        assert (await pushed(client)).version == 1
    async with node(tmp_path) as running:
        client = await running.ready()
        assert (await client.ask(register(cql.VIEW))).opcode == Opcode.READY
        await client.lives()


async def pushed(client: RawClient) -> ClusterView:
    """The view of the next frame, which is an event."""
    frame = await client.frame()
    assert (frame.stream, frame.opcode) == (EVENT_STREAM, Opcode.EVENT)
    assert cql.decode_event(frame.body) == cql.VIEW
    return decode_view(cql.decode_view(frame.body))


@in_a_loop
async def test_clients_that_use_up_the_limit_do_not_shut_other_nodes_out(tmp_path: Path) -> None:
    async with cluster(tmp_path, limits=Limits(connections=2)) as there:
        clients = [await there.nodes[0].open() for _ in range(2)]
        for client in clients:
            assert (await client.ask(startup())).opcode == Opcode.READY
        one_too_many = await there.nodes[0].open()
        refused = await one_too_many.ask(startup())
        assert isinstance(error_in(refused), TooManyConnections)
        link = await proven(there)
        assert (await link.ask(request(TellView(0, 1000, EMPTY)))).opcode != Opcode.ERROR
