"""Ten thousand clients of one shard, from processes of their own, and one that is served on."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

import maitred
from tests.node.nodes import Lines, RunningNode, running_node, wait_until
from tests.node.raw import echo, startup

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = 2
KEPT = 10_000
"""Connections that are open at the same time; those that are told to go come on top."""
REFUSED = 1_000
MEMORY_BYTES = 200 * 2**20
SLOWEST_SECONDS = 5.0
"""Bounds a hang, on a machine that runs other tests at the same time; see docs/benchmarks.md."""

HELD = echo("q", b"held", stream=1, hold=60_000)

STAY: list[tuple[bytes, int]] = [
    (startup(), 9),
    (startup() + echo("q", bytes(2_000))[:1_500], 9),
    (startup() + HELD, 9),
    (startup()[:-1], 0),
    (b"", 0),
]
"""What is said, and so many bytes of answer are read; after that the connection stays open."""

GO: list[bytes] = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 300,
    bytes(300),
    b"\x04\x00\x00\x00\x01\x7f\xff\xff\xff",
]
"""What is said by those whom the node has to close."""

CROWD = r"""
import json, resource, socket, sys

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
told = json.loads(sys.argv[1])
NO_PORT_YET = 24  # IP_BIND_ADDRESS_NO_PORT: the port is picked when it is known where to

def call(number):
    made = socket.socket()
    made.settimeout(60)
    if sys.platform == "linux":  # where all of 127/8 is here: ports enough, whoever else has some
        made.setsockopt(socket.IPPROTO_IP, NO_PORT_YET, 1)
        made.bind((told["sources"][number % len(told["sources"])], 0))
    made.connect((told["host"], told["port"]))
    return made

def is_closed(made):
    try:
        while made.recv(4096):
            pass
    except ConnectionError:
        pass
    made.close()
    return True

stayed, gone = [], 0
every = told["stay_count"] // told["go_count"]
for number in range(told["stay_count"]):
    said, answer_bytes = told["stay"][number % len(told["stay"])]
    made = call(number)
    made.sendall(bytes.fromhex(said))
    if answer_bytes:
        assert len(made.recv(answer_bytes, socket.MSG_WAITALL)) == answer_bytes, (number, said)
    stayed.append(made)
    if number % every == 0:
        made = call(number)
        made.sendall(bytes.fromhex(told["go"][gone % len(told["go"])]))
        gone += is_closed(made)
print(json.dumps({"stayed": len(stayed), "gone": gone}), flush=True)
sys.stdin.read()
for number, made in enumerate(stayed):
    if number % 2:  # half of them vanish without a word
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    made.close()
"""


@contextmanager
def crowd(node: RunningNode, number: int) -> Iterator[Lines]:
    """A process with its share of the connections; its line comes when all of them are open."""
    told = {
        "host": node.host,
        "port": node.port,
        "sources": [f"127.0.{number + 1}.{last}" for last in range(1, 5)],
        "stay": [(said.hex(), answer_bytes) for said, answer_bytes in STAY],
        "stay_count": KEPT // PROCESSES,
        "go": [said.hex() for said in GO],
        "go_count": REFUSED // PROCESSES,
    }
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = Lines()
        reader = threading.Thread(target=lines.follow, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield lines
            assert process.stdin
            process.stdin.close()
            assert process.wait(30) == 0, str(lines)
        finally:
            process.kill()
            process.wait()
            reader.join(30)


def need_descriptors() -> None:
    """The node's shard has all of them in one process, and each crowd its share."""
    need = KEPT + 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        pytest.skip(
            f"TEN THOUSAND CONNECTIONS WERE NOT TRIED: a process may have {hard:,} descriptors "
            f"here, and this needs {need:,} (ulimit -Hn)"
        )


def test_ten_thousand_connections_and_one_that_is_served_all_the_while() -> None:
    need_descriptors()
    limits = ("connections=12000", "handshake_seconds=300", "frame_seconds=300")
    settings = [word for limit in limits for word in ("--set", f"limits.{limit}")]
    most_bytes, slowest, asked = 0, 0.0, 0
    # A fork would have the memory of all modules, which a shard does not import.
    starting = running_node(*settings, shards=1, interpreters=True)
    with starting as node, maitred.connect(node.url) as client:
        assert client.status(0).connections == 1

        def ask() -> None:
            nonlocal most_bytes, slowest, asked
            began = time.monotonic()
            assert client.echo("shop", "q", b"still here").payload == b"still here"
            slowest = max(slowest, time.monotonic() - began)
            asked += 1
            if asked % 50 == 0:
                most_bytes = max(most_bytes, client.status(0).memory_bytes)

        with ExitStack() as stack:
            crowds = [stack.enter_context(crowd(node, number)) for number in range(PROCESSES)]
            while not all(lines.seen or lines.ended for lines in crowds):
                ask()
            for lines in crowds:
                expected = {"stayed": KEPT // PROCESSES, "gone": REFUSED // PROCESSES}
                assert [json.loads(line) for line in lines.seen] == [expected], str(lines)
            # Those who said nothing may have been connected by the kernel only.
            wait_until(lambda: client.status(0).connections >= KEPT + 1, "all are connected")
            for _ in range(100):
                ask()
            full = client.status(0)
            assert full.connections == KEPT + 1
            assert full.in_flight >= KEPT // len(STAY)
            most_bytes = max(most_bytes, full.memory_bytes)
        wait_until(lambda: client.status(0).connections == 1, "the crowds are gone")
        wait_until(lambda: client.status(0).in_flight <= 1, "nothing is held for them")
        ask()
        after = client.status(0)
        assert after.restarts == 0
        assert client.statistics().reconnects == 0
        assert max(most_bytes, after.memory_bytes) < MEMORY_BYTES
        assert asked > 200
        assert slowest < SLOWEST_SECONDS
        assert not [entry for entry in node.entries() if entry["level"] in {"error", "critical"}]
