"""A node's gateway proves itself to another node by the cluster's secret, and the node first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.client.connection import Connection
from maitred.client.credentials import ClusterLogin
from maitred.errors import ProtocolViolation, Unauthenticated
from maitred.gateway.process import other_nodes
from maitred.logs import silent
from maitred.node.control import StartGateway
from maitred.protocol import cql
from maitred.protocol.description import Description
from maitred.protocol.frames import Frame, Opcode
from maitred.protocol.notation import blob, string
from maitred.security.cluster_proof import NONCE_BYTES, cluster_proof
from maitred.settings import ClientSettings, Node, User
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from tests.client.conftest import Run

SECRET = b"s" * 32
MEMBER = "00000000000000a1"
SUPPORTED = cql.encode_supported(
    Description(
        node="n",
        shard=0,
        shards=1,
        shard_ports=(),
        frame_bytes=2**20,
        payload_bytes=2**20,
        in_flight=100,
        idle_seconds=60.0,
    ).supported()
)


class ListeningNode:
    """The node's end of the handshake."""

    def __init__(
        self,
        secret: bytes = SECRET,
        member: str = MEMBER,
        authenticator: str = cql.CLUSTER_AUTHENTICATOR,
    ) -> None:
        self.secret = secret
        self.member = member
        self.authenticator = authenticator
        self.nonces = (b"", b"B" * NONCE_BYTES)
        self.role = ""
        self.admitted = False
        self.heard: list[Opcode] = []

    def proof(self, direction: Any) -> bytes:  # noqa: ANN401 - a literal
        dialler, listener = self.nonces
        return cluster_proof(
            self.secret,
            direction,
            dialler_nonce=dialler,
            listener_nonce=listener,
            role=self.role,
            listener=self.member,
        )

    def answer(self, opcode: Opcode, body: bytes) -> tuple[Opcode, bytes]:
        self.heard.append(opcode)
        if opcode == Opcode.OPTIONS:
            return Opcode.SUPPORTED, SUPPORTED
        if opcode == Opcode.STARTUP:
            options = cql.decode_startup(body)
            assert cql.LOGIN not in options
            self.role = options[cql.ROLE]
            if not self.authenticator:
                return Opcode.READY, b""
            return Opcode.AUTHENTICATE, string(self.authenticator)
        if opcode == Opcode.AUTH_RESPONSE and not self.nonces[0]:
            self.nonces = (body[4:], self.nonces[1])
            assert len(self.nonces[0]) == NONCE_BYTES
            return Opcode.AUTH_CHALLENGE, blob(self.nonces[1] + self.proof("listener"))
        if opcode == Opcode.AUTH_RESPONSE:
            self.admitted = body == blob(self.proof("dialler"))
            return Opcode.AUTH_SUCCESS, cql.AUTH_SUCCESS_BODY
        return Opcode.READY, b""


async def shake_hands(node: ListeningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def exchange(_: Connection, opcode: Opcode, body: bytes, *expected: Opcode) -> Frame:
        answered, answer = node.answer(opcode, body)
        if answered not in expected:
            raise ProtocolViolation(f"{answered.name} is not expected.")
        return Frame(0, 0, answered, answer)

    monkeypatch.setattr(Connection, "_exchange", exchange)
    connection = Connection(asyncio.get_running_loop(), ClientSettings())
    login = ClusterLogin(SECRET, "gateway", lambda count: b"A" * count)
    assert "sss" not in repr(login)
    try:
        await connection.shake_hands(login, (1,), MEMBER)
    finally:
        if connection._heartbeat is not None:
            connection._heartbeat.cancel()


def test_both_prove_that_they_know_the_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = ListeningNode()
        await shake_hands(node, monkeypatch)
        assert node.admitted
        assert node.role == "gateway"
        assert node.heard[-1] == Opcode.REGISTER

    run(main())


@pytest.mark.parametrize(
    "node",
    [
        ListeningNode(secret=b"of another cluster"),
        ListeningNode(member="a later start of the node"),
        ListeningNode(authenticator=cql.PASSWORD_AUTHENTICATOR),
        ListeningNode(authenticator=""),
    ],
    ids=["secret", "member", "users", "nobody"],
)
def test_who_does_not_prove_to_be_the_member_is_told_nothing(
    run: Run, node: ListeningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        node.nonces = (b"", node.nonces[1])  # the test runs on two loops
        with pytest.raises(Unauthenticated):
            await shake_hands(node, monkeypatch)
        assert not node.admitted
        assert node.heard.count(Opcode.AUTH_RESPONSE) <= 1, "it was not shown our proof"
        node.heard.clear()

    run(main())


def test_a_challenge_of_the_wrong_length_is_refused() -> None:
    login = ClusterLogin(SECRET, "gateway", bytes)
    for challenge in (b"", b"B" * NONCE_BYTES, b"B" * 100):
        with pytest.raises(Unauthenticated):
            login.begin(MEMBER).answer(challenge)


def _start(settings: Node, secret: bytes = SECRET) -> StartGateway:
    return StartGateway(settings, 0, "127.0.0.1:1", "own", secret.hex())


def test_which_terms_a_gateway_has_for_other_nodes() -> None:
    users = {"ann": User(secret=cheaply("a"), permissions={"*": ["admin"]})}
    with_users = other_nodes(_start(Node(users=users)), bytes, silent())
    assert with_users is not None
    assert with_users.credentials is not None
    assert (with_users.credentials.secret, with_users.tls) == (SECRET, None)
    without = other_nodes(_start(Node()), bytes, silent())
    assert without is not None
    assert without.credentials is None, "every client may do what a gateway may do"
    assert other_nodes(_start(Node(users=users), b""), bytes, silent()) is None
