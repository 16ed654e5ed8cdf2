"""A head that is the last one's, byte for byte, is not read again, and nobody can tell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

from httptools import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import PermissionDenied
from maitred.gateway.http import reader
from maitred.gateway.http.budget import Budgets
from maitred.gateway.http.connection import HttpConnection
from maitred.settings import GatewaySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

Seen = tuple[bytes, bytes, dict[bytes, bytes], bytes, bool, bool]


class Door:
    """Answers everything at once, and remembers what came."""

    def __init__(self) -> None:
        self.seen: list[Seen | str] = []
        self.settings = GatewaySettings(body_bytes=64, header_bytes=400)
        self.budgets = Budgets(self.settings)
        self.guard = MagicMock(required=False)
        self.metrics = MagicMock(bytes_in=0, bytes_out=0, accepted=0)
        self.loop = MagicMock(time=lambda: 1.0)
        self.connections: dict[HttpConnection, None] = {}
        self.refused: Counter[str] = Counter()
        self.draining = False
        self.date = b"Date: now\r\n"
        self.log = MagicMock()

    def check_head(self, method: bytes, headers: Mapping[bytes, bytes]) -> None:
        if b"x-refused" in headers:
            raise PermissionDenied(f"No {method!r} here.")

    def admit(self, connection: HttpConnection, request: Any) -> bool:  # noqa: ANN401, ARG002
        self.seen.append("head")
        return bool(request.method == b"POST")

    def serve(self, connection: HttpConnection, request: Any) -> None:  # noqa: ANN401
        self.seen.append(
            (
                request.method,
                request.target,
                dict(request.headers),
                bytes(request.body),
                request.keep_alive,
                request.is_10,
            )
        )
        if request.refusal is not None:
            connection.answer_error(request, request.refusal)
            return
        connection.answer(request, 200, b"text/plain", b"")

    def write_later(self, connection: HttpConnection) -> None:
        connection.release()

    def malformed(self, peer: str, what: str) -> None:  # noqa: ARG002
        self.seen.append(what)


class Forgetful(HttpConnection):
    """Reads every head."""

    __slots__ = ()

    def _learn(self, data: bytes) -> None:
        pass


def read(kind: type[HttpConnection], pieces: list[bytes]) -> tuple[list[Seen | str], list[bytes]]:
    door = Door()
    connection = kind(cast("Any", door))
    transport = MagicMock()
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    return door.seen, [call.args[0] for call in transport.write.call_args_list]


HEADERS = st.lists(
    st.sampled_from(
        [
            b"Content-Type: application/json",
            b"Accept: */*",
            b"X-Odd: a\tb",
            b"Connection: keep-alive",
            b"Connection: close",
            b"Expect: 100-continue",
            b"Upgrade: h2c",
            b"Maitred-Timeout: 5",
            b"X-Refused: 1",
            b"Content-Encoding: gzip",
        ]
    ),
    max_size=3,
)
LENGTHS = st.sampled_from([b"Content-Length: %d", b"Content-Length: 00%d", b"content-length:%d"])
TRAILS = st.sampled_from([b"", b"", b"", b"\r\n", b"\r\n\r\n", b"\n", b"GARBAGE"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from([b"POST", b"POST", b"GET", b"HEAD"]))
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"]))
    lines = [method + b" /" + draw(st.sampled_from([b"a", b"b?x=1"])) + b" HTTP/" + version]
    lines += [b"Host: here", *draw(HEADERS)]
    body = draw(st.sampled_from([b"", b"[1]", b"[2]", b"\r\n\r\n[", b"GET", b"x" * 70]))
    if draw(st.integers(0, 9)) == 0:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif body or draw(st.booleans()):
        lines.append(draw(LENGTHS) % len(body))
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    return end.join([*lines, b"", b""]) + body + draw(TRAILS)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A few requests, again and again, in pieces of any size."""
    few = draw(st.lists(requests(), min_size=1, max_size=3))
    all_ = draw(st.lists(st.sampled_from(few), min_size=1, max_size=8))
    pieces: list[bytes] = []
    for one in all_:
        how = draw(st.sampled_from(["whole", "whole", "whole", "cut", "glued"]))
        if how == "cut":
            at = draw(st.integers(0, len(one)))
            pieces += [piece for piece in (one[:at], one[at:]) if piece]
        elif how == "glued" and pieces:
            pieces[-1] += one
        else:
            pieces.append(one)
    return pieces


@given(streams())
def test_it_is_read_as_if_it_were_new(pieces: list[bytes]) -> None:
    assert read(HttpConnection, pieces) == read(Forgetful, pieces)


def test_the_same_head_is_not_read_again(monkeypatch: Any) -> None:  # noqa: ANN401
    one = b"POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n"
    fed: list[bytes] = []
    parser = HttpRequestParser

    class Counting:
        def __init__(self, protocol: Any) -> None:  # noqa: ANN401
            self._parser = parser(protocol)

        def feed_data(self, data: bytes) -> None:
            fed.append(data)
            self._parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            return getattr(self._parser, name)

    monkeypatch.setattr(reader, "HttpRequestParser", Counting)
    seen, _ = read(HttpConnection, [one + b"[1]", one + b"[2]", one + b"[3]", one + b"[4", b"]"])
    assert [one if one == "head" else one[3] for one in seen] == [
        b"[1]",
        b"[2]",
        b"[3]",
        "head",  # asked about before the rest of its body is read
        b"[4]",
    ]
    assert fed == [one + b"[1]", one + b"[4", b"]"]
