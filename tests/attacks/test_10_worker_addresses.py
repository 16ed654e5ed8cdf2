"""Which hosts a worker can make gateways dial, and what they say there first."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.client.query_gateway import QueryGateway
from maitred.config import check
from maitred.errors import InvalidAddress, InvalidSetting, MaitredError, PermissionDenied
from maitred.node.announced import admitted
from maitred.protocol.frames import ANSWER, REQUEST, RESPONSE, FrameDecoder, Opcode, encode_frame
from maitred.protocol.queries import Attend
from maitred.protocol.query_link import Greeting, decode_hello, encode_greeting, session_proof
from maitred.protocol.tasks import Offer
from maitred.settings import Node, WorkerAddresses
from tests.client.nodes import HOST
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.queries_real.house import Scene, scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

FINGERPRINT = "ab" * 32
SESSION = b"chosen by a liar"
ARGUMENT = "the-argument-that-is-not-for-him"


# What is decided


@pytest.mark.parametrize(
    ("announced", "seen", "told"),
    [
        ("10.0.0.7:5100", "10.0.0.7", "10.0.0.7:5100"),
        (":5100", "10.0.0.7", "10.0.0.7:5100"),
        (f":5100#{FINGERPRINT}", "10.0.0.7", f"10.0.0.7:5100#{FINGERPRINT}"),
        ("10.0.0.7:5100", "::ffff:10.0.0.7", "10.0.0.7:5100"),
        ("[2001:db8::7]:5100", "2001:db8:0::7", "[2001:db8::7]:5100"),
        ("127.0.0.1:5100", "127.0.0.1", "127.0.0.1:5100"),
        ("127.0.0.1:5100", "::1", "127.0.0.1:5100"),
        # Only the worker's own machine reaches it there; another one's loopback is another machine.
        ("127.0.0.1:5100", "10.0.0.7", ""),
        ("[::1]:5100", "10.0.0.7", ""),
        # An operator allowed this network.
        ("192.168.3.4:5100", "10.0.0.7", "192.168.3.4:5100"),
    ],
)
def test_what_gateways_are_told(announced: str, seen: str, told: str) -> None:
    networks = [ip_network("192.168.0.0/16")]
    assert admitted(announced, seen, networks, WorkerAddresses()) == told


@pytest.mark.parametrize(
    ("announced", "kind"),
    [
        ("10.0.0.8:5100", PermissionDenied),
        ("169.254.169.254:5100", PermissionDenied),
        ("[::ffff:10.0.0.8]:5100", PermissionDenied),
        ("0.0.0.0:5100", PermissionDenied),
        ("[::]:5100", PermissionDenied),
        ("224.0.0.1:5100", PermissionDenied),
        ("10.0.0.7:22", PermissionDenied),
        (":1023", PermissionDenied),
        ("localhost:5100", InvalidAddress),
        ("rebinds.example:5100", InvalidAddress),
        ("010.0.0.7:5100", InvalidAddress),
        ("10.0.0.7", InvalidAddress),
        ("10.0.0.7:0", InvalidAddress),
        ("10.0.0.7:65536", InvalidAddress),
        ("10.0.0.7:+5100", InvalidAddress),
        ("10.0.0.7:5100#", InvalidAddress),
        ("10.0.0.7:5100#abcd", InvalidAddress),
        ("user@10.0.0.7:5100", InvalidAddress),
        ("10.0.0.7:5100\r\nSET a b", InvalidAddress),
    ],
)
def test_what_a_worker_may_not_announce(announced: str, kind: type[MaitredError]) -> None:
    with pytest.raises(kind) as refused:
        admitted(announced, "10.0.0.7", [], WorkerAddresses())
    assert refused.value.remedy


def test_not_even_an_allowed_network_has_an_address_of_everybody() -> None:
    for everybody in ("0.0.0.0", "224.0.0.1"):  # noqa: S104 - refused
        with pytest.raises(PermissionDenied):
            admitted(f"{everybody}:5100", "10.0.0.7", [ip_network("0.0.0.0/0")], WorkerAddresses())


def test_a_setting_that_is_no_network_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="not a network"):
        check(Node(worker_addresses=WorkerAddresses(networks=["10.0.0.0/33"])))


# At a node


def an_app() -> App:
    app = App("desk")

    @app.handler("price")
    async def price(text: str) -> str:
        return text

    return app


def offer(address: str) -> Offer:
    return Offer("desk", "price", 1, 0, 0, 0, SESSION, "liar", 1, address=address)


def attend(address: str) -> Attend:
    return Attend("desk", "price", 1, 0, 0, SESSION, "liar", address, 1, 0)


@pytest.mark.parametrize("say", [offer, attend])
@in_a_loop
async def test_a_node_refuses_foreign_addresses(say: Callable[[str], Any]) -> None:
    async with scene(an_app(), shards=2) as one, one.house.connect() as client:
        for address, kind in (
            ("10.1.2.3:6379", PermissionDenied),
            ("127.0.0.1:22", PermissionDenied),
            ("localhost:6379", InvalidAddress),
        ):
            with pytest.raises(kind):
                await client.request(say(address), 5)


class Listener:
    """A service that is no worker, of which somebody claims that it is."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.heard: list[bytearray] = []
        """By connection."""
        self._answer = answer

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.heard.append(heard)
        try:
            while data := await reader.read(65_536):
                heard += data
                writer.write(self._answer(bytes(heard)))
        except ConnectionError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def lured(answer: Callable[[bytes], bytes]) -> AsyncIterator[tuple[Scene, Listener]]:
    """A gateway was sent to the listener, with a query."""
    listener = Listener(answer)
    server = await asyncio.start_server(listener.meet, HOST, 0)
    address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with scene(an_app()) as one, one.house.connect() as liar:
        await liar.request(attend(address), 5)
        held = liar.hold(offer(address), 30)
        held.tell(lambda _: None)
        yield one, listener
    server.close()


def _greeting(session: bytes) -> Callable[[bytes], bytes]:
    def answer(heard: bytes) -> bytes:
        decoder = FrameDecoder(REQUEST, 2**20)
        decoder.feed(heard)
        (hello, *_) = decoder.take(1)
        proof = session_proof("worker", session, decode_hello(hello.body).challenge)
        body = encode_greeting(Greeting(proof, bytes(16)))
        return encode_frame(RESPONSE, 0, 0, Opcode.HELLO + ANSWER, body)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lambda heard: heard,
        lambda _: b"",
        lambda _: b"-ERR unknown command\r\n",
        lambda _: b"HTTP/1.1 200 OK\r\n\r\n",
        lambda _: encode_frame(RESPONSE, 0, 0, Opcode.PING + ANSWER, b""),
        _greeting(b"another session."),
    ],
    ids=["an echo", "silence", "redis", "http", "a pong", "another worker"],
)
@in_a_loop
async def test_whoever_is_no_worker_hears_a_greeting_without_anything_chosen(
    answer: Callable[[bytes], bytes],
) -> None:
    async with lured(answer) as (one, listener):
        client = await one.client(log=RecordedLog(), dial_seconds=2.0)
        asking = asyncio.create_task(client.query("price", ARGUMENT, namespace="desk"))
        await until(lambda: bool(listener.heard and listener.heard[0]))
        querying = client._querying
        assert isinstance(querying, QueryGateway)
        # The link is given up, whatever becomes of the query.
        await until(lambda: not querying.links._dialing)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for heard in listener.heard:
            head = encode_frame(REQUEST, 0, 0, Opcode.HELLO, bytes(20))[:9]
            assert len(heard) == len(head) + 20
            assert heard.startswith(head)
            # An array of two: sixteen random bytes, and the version.
            assert heard[9:12] == b"\x92\xc4\x10"
            assert heard[28:] == b"\x02"
            assert SESSION not in heard
            assert ARGUMENT.encode() not in heard
