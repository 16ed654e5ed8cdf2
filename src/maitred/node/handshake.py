"""The CQL part of a connection: the handshake, and the statements with which drivers begin.

A table has the messages that are allowed in each state. A well-formed message that is out of place
is refused, and the connection stays open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from maitred.errors import (
    InvalidArgument,
    Overloaded,
    ProtocolViolation,
    Unauthenticated,
    UnknownRequest,
)
from maitred.node.accepted import Accepted
from maitred.node.connection_states import ConnectionEvent, ConnectionState
from maitred.protocol import cql
from maitred.protocol.description import agree
from maitred.protocol.frames import COMPRESSED, CUSTOM_PAYLOAD, Frame, Opcode
from maitred.protocol.notation import Reader
from maitred.security.directory import GATEWAY_IDENTITY
from maitred.security.permissions import EVERYTHING
from maitred.security.users import CREDENTIALS_IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.security.directory import Identity
    from maitred.security.source import Source

OWN_OPCODES: Final = 0x40
"""The first opcode of maitred's own requests."""

_STATEMENTS: Final = frozenset((Opcode.PREPARE, Opcode.EXECUTE, Opcode.BATCH))
"""Requests of CQL for statements over data, which drivers know and this node does not serve."""


NODE: Final = "node"
GATEWAY_ROLE: Final = "gateway"
ROLES: Final = frozenset((NODE, GATEWAY_ROLE))
"""What a process of another node can be: a shard, or a gateway."""

MEMBER_LETTERS_MAX: Final = 64
"""Longest id of a member that is kept; ours have sixteen letters."""


class Handshake(Accepted):
    """The part of a connection that speaks CQL."""

    __slots__ = ()

    def _cql(self, frame: Frame) -> None:
        if self._stream_refused(frame.stream):
            return
        if frame.flags & COMPRESSED:
            raise ProtocolViolation("The frame is compressed, and nothing was agreed upon.")
        body = frame.body
        if frame.flags & CUSTOM_PAYLOAD:
            reader = Reader(body)
            reader.bytes_map()
            body = reader.rest()
        say = self._TABLE.get((self.state, frame.opcode))
        if say is not None:
            say(self, frame.stream, body)
        elif frame.opcode >= OWN_OPCODES:
            raise ProtocolViolation(
                "Say MAITRED_VERSION in STARTUP before making requests."
                if self.state is ConnectionState.READY
                else "The handshake comes before requests."
            )
        elif any(opcode == frame.opcode for _, opcode in self._TABLE):
            raise ProtocolViolation(
                f"{Opcode(frame.opcode).name} is out of place while the connection is "
                f"{self.state.name}."
            )
        elif frame.opcode in _STATEMENTS:
            raise UnknownRequest(
                f"{Opcode(frame.opcode).name} is not supported.",
                remedy="Send plain statements with QUERY; only system tables can be read.",
            )
        else:
            raise UnknownRequest(f"There is no request with the opcode 0x{frame.opcode:02x}.")

    def _options(self, stream: int, body: bytes) -> None:
        if body:
            raise ProtocolViolation("OPTIONS has no body.")
        self.send(0, stream, Opcode.SUPPORTED, self.shard.supported_body)

    def _startup(self, stream: int, body: bytes) -> None:
        options = cql.decode_startup(body)
        if options.get("COMPRESSION"):
            raise InvalidArgument("Compression is not spoken here.")
        self._agreed_version = 0  # an earlier STARTUP, which was refused, may have named one
        spoken = options.get("MAITRED_VERSION")
        if spoken is not None:
            try:
                self._agreed_version = agree([int(spoken)], self.shard.description.versions)
            except ValueError:
                raise ProtocolViolation(
                    f"MAITRED_VERSION has to be a number, not {spoken[:60]!r}."
                ) from None
        if cql.ROLE in options:
            self._greet(stream, options)
            return
        if self._for_node:
            self.say_farewell(self._too_many(), stream)
            return
        # A client that has credentials is asked for them, even if its certificate names a user.
        known = None if cql.LOGIN in options else self.shard.certified(self.transport)
        if known is not None:
            self._logged_in(known, self.source)
            self.send(0, stream, Opcode.READY, b"")
        elif self.shard.users.required:
            self.happen(ConnectionEvent.ASK_CREDENTIALS)
            self.send(0, stream, Opcode.AUTHENTICATE, cql.encode_authenticate())
        else:
            if cql.LOGIN in options and not self.shard.told_of_credentials:
                self.shard.told_of_credentials = True
                self.shard.log.warning(CREDENTIALS_IGNORED, peer=str(self.source))
            self.permissions = EVERYTHING
            self._become_ready()
            self.send(0, stream, Opcode.READY, b"")

    def _greet(self, stream: int, options: dict[str, str]) -> None:
        """Ask a process of another node to prove that it belongs to the cluster."""
        role, prover = options[cql.ROLE], self.shard.prover
        if prover is None:
            raise InvalidArgument(
                "This node belongs to no cluster.", remedy="Connect as a client or a user."
            )
        if role not in ROLES:
            raise InvalidArgument(f"There is no role {role[:60]!r} in a cluster.")
        if not self._agreed_version:
            raise ProtocolViolation("A process of another node has to say MAITRED_VERSION.")
        self.happen(ConnectionEvent.GREET)
        self._proving = prover(role)
        self.member = options.get(cql.MEMBER, "")[:MEMBER_LETTERS_MAX]
        body = cql.encode_authenticate(cql.CLUSTER_AUTHENTICATOR)
        self.send(0, stream, Opcode.AUTHENTICATE, body)

    def _challenge(self, stream: int, body: bytes) -> None:
        assert self._proving is not None  # noqa: S101 - the table of states says so
        challenge = self._proving.challenge(cql.decode_token(body))
        self.happen(ConnectionEvent.CHALLENGE)
        self.send(0, stream, Opcode.AUTH_CHALLENGE, cql.encode_token(challenge))

    def _proof(self, stream: int, body: bytes) -> None:
        shown = cql.decode_token(body)
        proving, self._proving = self._proving, None
        assert proving is not None  # noqa: S101 - the table of states says so
        if not proving.accepts(shown):
            problem = Unauthenticated(
                "The process did not prove that it belongs to this cluster.",
                remedy="Nodes of a cluster share a database, which has the cluster's secret.",
            )
            self.shard.authenticator.refuse(f"cluster {proving.role}", self.source, problem)
            self.say_farewell(problem, stream)
            return
        if proving.role == NODE:
            self._become_ready()
            self._become_peer(self.member)
        else:
            self._logged_in(GATEWAY_IDENTITY, self.source)
        self.send(0, stream, Opcode.AUTH_SUCCESS, cql.AUTH_SUCCESS_BODY)

    def _auth_response(self, stream: int, body: bytes) -> None:
        user, secret = cql.decode_credentials(body)
        self.happen(ConnectionEvent.VERIFY)
        # The source is read now: a transport that is closed later does not tell it.
        self._verifying = self.shard.spawn(self._verify(stream, user, secret, self.source))

    async def _verify(self, stream: int, user: str, secret: str, source: Source) -> None:
        try:
            identity = await self.shard.authenticator.authenticate(user, secret, source)
        except (Unauthenticated, Overloaded) as problem:
            self.say_farewell(problem, stream)
            return
        except Exception as problem:  # noqa: BLE001 - the client must get an answer
            if self.state is ConnectionState.VERIFYING:
                self.happen(ConnectionEvent.VERIFICATION_FAILED)
            self.blame_ourselves(stream, problem)
            return
        if self.state is not ConnectionState.VERIFYING:
            return  # the connection was closed meanwhile
        self._logged_in(identity, source)
        self.send(0, stream, Opcode.AUTH_SUCCESS, cql.AUTH_SUCCESS_BODY)

    def _logged_in(self, identity: Identity, source: Source) -> None:
        self.identity = identity
        self.permissions = identity.permissions
        if self.shard.audit is not None:
            via = {"via": identity.via}
            self.shard.audit.record("login", user=identity.name, source=source, details=via)
        self._become_ready()

    def _become_ready(self) -> None:
        self.shard.strangers_bytes -= self.partial_bytes  # these bytes count as a user's now
        self.happen(ConnectionEvent.ADMIT)
        self.version = self._agreed_version
        self.decoder.max_body_bytes = self.shard.limits.frame_bytes

    def _register(self, stream: int, body: bytes) -> None:
        self.events |= frozenset(cql.decode_register(body))
        self.send(0, stream, Opcode.READY, b"")
        if cql.VIEW in self.events:
            self.tell_view()
        if self.shard.draining:  # the others heard it when the drain began
            self.announce_drain()

    def _query(self, stream: int, body: bytes) -> None:
        # The client can use the address at which it reached this shard.
        address = self.transport.get_extra_info("sockname")[0]
        result = self.shard.tables.select(cql.decode_query(body), address)
        self.send(0, stream, Opcode.RESULT, result)

    _TABLE: ClassVar[dict[tuple[ConnectionState, int], Callable[[Handshake, int, bytes], None]]] = {
        (ConnectionState.FRESH, Opcode.OPTIONS): _options,
        (ConnectionState.FRESH, Opcode.STARTUP): _startup,
        (ConnectionState.AUTHENTICATING, Opcode.OPTIONS): _options,
        (ConnectionState.AUTHENTICATING, Opcode.AUTH_RESPONSE): _auth_response,
        (ConnectionState.VERIFYING, Opcode.OPTIONS): _options,
        (ConnectionState.GREETED, Opcode.OPTIONS): _options,
        (ConnectionState.GREETED, Opcode.AUTH_RESPONSE): _challenge,
        (ConnectionState.CHALLENGED, Opcode.OPTIONS): _options,
        (ConnectionState.CHALLENGED, Opcode.AUTH_RESPONSE): _proof,
        (ConnectionState.READY, Opcode.OPTIONS): _options,
        (ConnectionState.READY, Opcode.REGISTER): _register,
        (ConnectionState.READY, Opcode.QUERY): _query,
    }
    """The messages that are allowed in each state."""
