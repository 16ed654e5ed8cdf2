"""From the first byte to READY: what may be said when, and what anything else gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred import __version__, errors
from maitred.protocol import cql
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.messages import Status, encode
from maitred.protocol.notation import bytes_map
from maitred.settings import User
from tests.node.in_process import LOOPS, NODE, in_a_loop, node
from tests.node.raw import (
    RawClient,
    cancel,
    credentials,
    echo,
    echoed_in,
    error_in,
    options,
    query,
    register,
    startup,
    status,
    status_in,
)
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

USERS = {"alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]})}

FRAMES = {
    "OPTIONS": options(7),
    "STARTUP": startup(stream=7),
    "AUTH_RESPONSE": credentials("alice", "wonder", 7),
    "REGISTER": register("STATUS_CHANGE", stream=7),
    "QUERY": query("SELECT * FROM system.local", 7),
    "ECHO": echo("q", stream=7),
    "STATUS": status(0, stream=7),
    "PREPARE": encode_frame(REQUEST, 0, 7, Opcode.PREPARE, b"\0\0\0\1x"),
    "EXECUTE": encode_frame(REQUEST, 0, 7, Opcode.EXECUTE, b""),
    "BATCH": encode_frame(REQUEST, 0, 7, Opcode.BATCH, b""),
    "READY": encode_frame(REQUEST, 0, 7, Opcode.READY, b""),
    "SUPPORTED": encode_frame(REQUEST, 0, 7, Opcode.SUPPORTED, b""),
    "CQL's unknown": encode_frame(REQUEST, 0, 7, 0x3F, b""),
    "ours, unknown": encode_frame(REQUEST, 0, 7, 0x7F, b""),
}

# What each state answers, by opcode or by code; whatever is not here is an unknown request.
EXPECTED: dict[str, dict[str, int | str]] = {
    "FRESH": {
        "OPTIONS": Opcode.SUPPORTED,
        "STARTUP": Opcode.AUTHENTICATE,
        "AUTH_RESPONSE": "protocol-violation",
        "REGISTER": "protocol-violation",
        "QUERY": "protocol-violation",
        "ECHO": "protocol-violation",
        "STATUS": "protocol-violation",
        "ours, unknown": "protocol-violation",
    },
    "AUTHENTICATING": {
        "OPTIONS": Opcode.SUPPORTED,
        "STARTUP": "protocol-violation",
        "AUTH_RESPONSE": Opcode.AUTH_SUCCESS,
        "REGISTER": "protocol-violation",
        "QUERY": "protocol-violation",
        "ECHO": "protocol-violation",
        "STATUS": "protocol-violation",
        "ours, unknown": "protocol-violation",
    },
    "READY": {
        "OPTIONS": Opcode.SUPPORTED,
        "STARTUP": "protocol-violation",
        "AUTH_RESPONSE": "protocol-violation",
        "REGISTER": Opcode.READY,
        "QUERY": Opcode.RESULT,
        "ECHO": 0xC0,
        "STATUS": 0xC1,
    },
}


@pytest.mark.parametrize("state", EXPECTED)
@in_a_loop
async def test_what_may_be_said_in_which_state(state: str, tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        for name, frame in FRAMES.items():
            client = await running.open()
            if state == "AUTHENTICATING":
                assert (await client.ask(startup())).opcode == Opcode.AUTHENTICATE
            elif state == "READY":
                await client.handshake("alice", "wonder")
            answer = await client.ask(frame)
            expected = EXPECTED[state].get(name, "unknown-request")
            seen = error_in(answer).code if answer.opcode == Opcode.ERROR else answer.opcode
            assert seen == expected, (name, state)
            # Whatever it was, it was a frame: the connection goes on.
            await client.lives()
            client.close()


@in_a_loop
async def test_out_of_place_says_what_and_where(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        sentence = error_in(await client.ask(FRAMES["QUERY"])).sentence
        assert "QUERY" in sentence
        assert "FRESH" in sentence


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_supported_describes_the_shard(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=2) as running:
        client = await running.open(1)
        told = cql.decode_supported((await client.ask(options())).body)
        limits = running.settings.limits
        assert float(told.pop("MAITRED_IDLE_SECONDS")[0]) == limits.idle_seconds
        assert told == {
            "CQL_VERSION": ["3.0.0"],
            "COMPRESSION": [],
            "PROTOCOL_VERSIONS": ["4/v4"],
            "SCYLLA_SHARD": ["1"],
            "SCYLLA_NR_SHARDS": ["2"],
            "SCYLLA_PARTITIONER": ["org.apache.cassandra.dht.Murmur3Partitioner"],
            "SCYLLA_SHARDING_ALGORITHM": ["biased-token-round-robin"],
            "SCYLLA_SHARDING_IGNORE_MSB": ["12"],
            "MAITRED_VERSIONS": ["1", "2", "3"],
            "MAITRED_RELEASE": [__version__],
            "MAITRED_NODE": [str(NODE)],
            "MAITRED_SHARD_PORTS": [str(port) for port in running.own_ports],
            "MAITRED_SPREAD_BATCH": ["0"],
            "MAITRED_FRAME_BYTES": [str(limits.frame_bytes)],
            "MAITRED_PAYLOAD_BYTES": [str(limits.payload_bytes)],
            "MAITRED_IN_FLIGHT": ["1024"],
        }


@in_a_loop
async def test_every_shard_is_reached_through_the_shared_port(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        seen = set()
        for _ in range(200):  # each is as good as a coin
            client = await RawClient.open(running.port)
            told = cql.decode_supported((await client.ask(options())).body)
            seen.add(told["SCYLLA_SHARD"][0])
            client.reset()
            if len(seen) == 2:
                break
        assert seen == {"0", "1"}


@in_a_loop
async def test_a_driver_that_tries_a_newer_version_first(tmp_path: Path) -> None:
    """It waits for the answer on its stream, and looks for these words before it tries again."""
    async with node(tmp_path) as running:
        client = await running.open()
        client.write(encode_frame(0x05, 0, 12, Opcode.OPTIONS, b""))
        answer = await client.frame()
        assert answer.stream == 12
        problem = error_in(answer)
        assert problem.code == "unsupported-version"
        assert "unsupported protocol version" in problem.sentence
        assert answer.body[:4] == b"\x00\x00\x00\x0a"  # CQL's number for it
        await client.ended()


@in_a_loop
async def test_without_our_version_it_is_a_driver(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        await client.handshake(version=None)
        assert (await client.ask(query("SELECT * FROM system.peers"))).opcode == Opcode.RESULT
        problem = error_in(await client.ask(echo("q", stream=3)))
        assert problem.code == "protocol-violation"
        assert "MAITRED_VERSION" in problem.sentence
        await client.lives()


@pytest.mark.parametrize(
    ("version", "code", "word"),
    [
        ("99", "unsupported-version", "99"),
        ("0", "unsupported-version", "unsupported protocol version"),
        ("-1", "unsupported-version", "-1"),
        ("one", "protocol-violation", "one"),
        ("", "protocol-violation", "number"),
        ("9" * 5000, "protocol-violation", "number"),
    ],
)
@in_a_loop
async def test_versions_we_do_not_speak(version: str, code: str, word: str, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        problem = error_in(await client.ask(startup(version)))
        assert problem.code == code
        assert word in problem.sentence
        # It may choose again.
        await client.handshake()
        assert echoed_in(await client.ask(echo("q"))).payload == b"hello"


@in_a_loop
async def test_compression_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        problem = error_in(await client.ask(startup(COMPRESSION="lz4")))
        assert isinstance(problem, errors.InvalidArgument)
        client.write(encode_frame(REQUEST, 0x01, 4, Opcode.OPTIONS, b""))
        assert error_in(await client.frame()).code == "protocol-violation"
        # Naming none is the same as not naming any.
        assert (await client.ask(startup(COMPRESSION=""))).opcode == Opcode.READY


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00\x00",  # no CQL_VERSION
        b"\xff\xff",  # 65,535 entries, none of them there
        b"\x00\x01\x00\x0bCQL_VERSION\xff\xff",
        b"\x00\x01\x00\x02\xff\xfe\x00\x00",  # not UTF-8
    ],
)
@in_a_loop
async def test_startup_that_makes_no_sense(body: bytes, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        answer = await client.ask(encode_frame(REQUEST, 0, 1, Opcode.STARTUP, body))
        assert error_in(answer).code == "protocol-violation"
        await client.handshake()


@in_a_loop
async def test_options_has_no_body(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        answer = await client.ask(encode_frame(REQUEST, 0, 1, Opcode.OPTIONS, b"x"))
        assert error_in(answer).code == "protocol-violation"
        await client.lives()


@in_a_loop
async def test_a_custom_payload_before_a_cql_message_is_skipped(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        payload = bytes_map({"somebody's": b"business", "nothing": None})
        frame = encode_frame(REQUEST, 0x04, 1, Opcode.OPTIONS, payload)
        assert (await client.ask(frame)).opcode == Opcode.SUPPORTED
        cut = encode_frame(REQUEST, 0x04, 1, Opcode.OPTIONS, payload[:-1])
        assert error_in(await client.ask(cut)).code == "protocol-violation"
        await client.lives()


@in_a_loop
async def test_unknown_events_cannot_be_registered_for(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        problem = error_in(await client.ask(register("STATUS_CHANGE", "DOOMSDAY")))
        assert problem.code == "protocol-violation"
        assert "DOOMSDAY" in problem.sentence
        known = register("TOPOLOGY_CHANGE", "STATUS_CHANGE", "SCHEMA_CHANGE", "MAITRED_DRAINING")
        assert (await client.ask(known)).opcode == Opcode.READY


@pytest.mark.parametrize("stream", [-1, -2, -32_768])
@in_a_loop
async def test_negative_streams_end_the_connection(stream: int, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        client.write(options(stream))
        assert (await client.last_words()).code == "protocol-violation"
        client = await running.ready()
        client.write(options(stream))
        assert (await client.last_words()).code == "protocol-violation"


@in_a_loop
async def test_a_handshake_can_be_sent_at_once(tmp_path: Path) -> None:
    """Nobody has to wait for READY, as long as the frames are small."""
    async with node(tmp_path) as running:
        client = await running.open()
        client.write(options(1) + startup(stream=2) + echo("q", stream=3) + cancel(9))
        answers = await client.frames(3)
        assert answers[1].opcode == Opcode.SUPPORTED
        assert answers[2].opcode == Opcode.READY
        assert echoed_in(answers[3]).payload == b"hello"


@in_a_loop
async def test_frames_of_strangers_are_small(tmp_path: Path) -> None:
    """64 KiB before READY, whatever comes afterwards."""
    async with node(tmp_path) as running:
        client = await running.open()
        fitting = encode_frame(REQUEST, 0, 1, Opcode.STARTUP, bytes(64 * 1024))
        assert error_in(await client.ask(fitting)).code == "protocol-violation"
        client.write(encode_frame(REQUEST, 0, 1, Opcode.STARTUP, bytes(64 * 1024 + 1)))
        assert (await client.last_words()).code == "frame-too-large"
        client = await running.ready()
        assert echoed_in(await client.ask(echo("q", bytes(64 * 1024)))).payload == bytes(64 * 1024)


@in_a_loop
async def test_status_tells_how_the_shard_is(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        elsewhere = running.queue_of(1)
        await client.ask(echo(running.queue_of(0)))
        await client.ask(echo(elsewhere))
        await client.ask(encode_frame(REQUEST, 0, 0, 0x7F, b""))
        mine = status_in(await client.ask(status(0)))
        assert (mine.node, mine.shard, mine.state) == (str(NODE), 0, "serving")
        assert mine.release == __version__
        assert mine.address == f"127.0.0.1:{running.own_ports[0]}"
        assert (mine.connections, mine.forwarded, mine.received_forwarded) == (1, 1, 0)
        assert (mine.requests, mine.in_flight) == (3, 0)
        assert mine.errors == {"unknown-request": 1}
        assert mine.memory_bytes > 2**20
        assert mine.pid > 0
        theirs = status_in(await client.ask(status(1)))
        assert (theirs.shard, theirs.connections) == (1, 0)
        assert theirs.received_forwarded == 2  # the echo, and this
        problem = error_in(await client.ask(status(2)))
        assert problem.code == "invalid-argument"
        assert "0 to 1" in problem.sentence
        beyond = encode_frame(REQUEST, 0, 0, Opcode.STATUS, encode(Status(-1, 1000)))
        assert error_in(await client.ask(beyond)).code == "invalid-argument"
