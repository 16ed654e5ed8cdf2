"""What is said in CQL: the handshake, and what a driver asks to keep house.

The handshake is a table: what may be said in which state. A message that is well-formed and out of
place is refused and the connection goes on.
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
from maitred.node.accepted import Accepted, HandshakeState
from maitred.protocol import cql
from maitred.protocol.description import agree
from maitred.protocol.frames import COMPRESSED, CUSTOM_PAYLOAD, Frame, Opcode
from maitred.protocol.notation import Reader
from maitred.security.permissions import EVERYTHING
from maitred.security.users import CREDENTIALS_IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.security.directory import Identity
    from maitred.security.source import Source

OWN_OPCODES: Final = 0x40
"""Opcodes from here on are ours."""

_STATEMENTS: Final = frozenset((Opcode.PREPARE, Opcode.EXECUTE, Opcode.BATCH))
"""Requests of CQL for statements over data, which drivers know and this node does not serve."""


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
                if self.state is HandshakeState.READY
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
        spoken = options.get("MAITRED_VERSION")
        if spoken is not None:
            try:
                self._agreed_version = agree([int(spoken)], self.shard.description.versions)
            except ValueError:
                raise ProtocolViolation(
                    f"MAITRED_VERSION has to be a number, not {spoken[:60]!r}."
                ) from None
        # Whoever has credentials to show is asked for them, whatever the certificate says.
        known = None if cql.LOGIN in options else self.shard.certified(self.transport)
        if known is not None:
            self._logged_in(known, self.source)
            self.send(0, stream, Opcode.READY, b"")
        elif self.shard.users.required:
            self.state = HandshakeState.AUTHENTICATING
            self.send(0, stream, Opcode.AUTHENTICATE, cql.encode_authenticate())
        else:
            if cql.LOGIN in options and not self.shard.told_of_credentials:
                self.shard.told_of_credentials = True
                self.shard.log.warning(CREDENTIALS_IGNORED, peer=str(self.source))
            self.permissions = EVERYTHING
            self._become_ready()
            self.send(0, stream, Opcode.READY, b"")

    def _auth_response(self, stream: int, body: bytes) -> None:
        if self._verifying:
            raise ProtocolViolation("One AUTH_RESPONSE is being looked at already.")
        user, secret = cql.decode_credentials(body)
        # A transport that is closed by the time of the verification does not tell its source.
        self._verifying = self.shard.spawn(self._verify(stream, user, secret, self.source))

    async def _verify(self, stream: int, user: str, secret: str, source: Source) -> None:
        try:
            identity = await self.shard.authenticator.authenticate(user, secret, source)
        except (Unauthenticated, Overloaded) as problem:
            self.say_farewell(problem, stream)
            return
        except Exception as problem:  # noqa: BLE001 - the client must not wait for ever
            self._verifying = None
            self.blame_ourselves(stream, problem)
            return
        if self.closing:
            return
        self._verifying = None
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
        self.shard.strangers_bytes -= self.partial_bytes  # which are a user's from now on
        self.state = HandshakeState.READY
        self.version = self._agreed_version
        self.decoder.max_body_bytes = self.shard.limits.frame_bytes

    def _register(self, stream: int, body: bytes) -> None:
        self.events |= frozenset(cql.decode_register(body))
        self.send(0, stream, Opcode.READY, b"")
        if self.shard.draining:  # it has been announced, but not to this one
            self.announce_drain()

    def _query(self, stream: int, body: bytes) -> None:
        # The address at which this client has found us is the one it can use.
        address = self.transport.get_extra_info("sockname")[0]
        result = self.shard.tables.select(cql.decode_query(body), address)
        self.send(0, stream, Opcode.RESULT, result)

    _TABLE: ClassVar[dict[tuple[HandshakeState, int], Callable[[Handshake, int, bytes], None]]] = {
        (HandshakeState.FRESH, Opcode.OPTIONS): _options,
        (HandshakeState.FRESH, Opcode.STARTUP): _startup,
        (HandshakeState.AUTHENTICATING, Opcode.OPTIONS): _options,
        (HandshakeState.AUTHENTICATING, Opcode.AUTH_RESPONSE): _auth_response,
        (HandshakeState.READY, Opcode.OPTIONS): _options,
        (HandshakeState.READY, Opcode.REGISTER): _register,
        (HandshakeState.READY, Opcode.QUERY): _query,
    }
    """What may be said in which state."""
