"""HTTP callers that fill a gateway's memory: `python -m benchmarks.attacks.http`.

A node with users is started as a user starts it, with a worker that echoes. Then 500 connections
at a time send what a gateway could be made to keep: bodies one byte short of 2 MiB, bodies in
chunks of two bytes, and requests whose answers nobody reads; each without an Authorization header
and with a valid one. A bystander asks a query fifty times a second all the while.

Printed for each attack: the memory of the gateway's process before, at its peak and afterwards, and
how long the bystander's queries took. The exit status is 1 if the peak is 100 MiB or more above the
memory before, or the bystander's p99 is 250 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maitred import App
from maitred.security.secrets import hash_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS: Final = 500
BODY_BYTES: Final = 2 * 2**20
HOLD_SECONDS: Final = 8.0
"""How long an attack goes on."""
SEND_SECONDS: Final = 30.0
"""How long sending may take: as long as a gateway lets a body take."""
PAUSE_SECONDS: Final = 0.02
"""Between two queries of the bystander."""
AFTER_SECONDS: Final = 10.0
"""From the end of an attack to the last look at the memory."""
MEMORY_MIB: Final = 100.0
P99_SECONDS: Final = 0.25
MIB: Final = 2**20
PATH: Final = "/v1/default/queues/echo/query"
USER, SECRET = "alice", "open sesame"

app = App("default")


@app.handler("echo")
async def echo(value: int) -> int:
    """Give it back."""
    return value


@dataclass
class Attack:
    """What one kind of caller sends."""

    name: str
    head: str
    body: bytes
    """Sent after the head, again and again until it is `size` bytes, or the gateway closes."""
    size: int
    logged_in: bool


def attacks() -> list[Attack]:
    """Return all of them."""
    chunk = b"2\r\nxx\r\n"
    kinds = (
        ("one byte short of 2 MiB", f"Content-Length: {BODY_BYTES}", b"x" * MIB, BODY_BYTES - 1),
        (
            "chunks of two bytes",
            "Transfer-Encoding: chunked",
            chunk * 40_000,
            (BODY_BYTES // 2 - 1) * len(chunk),
        ),
        (
            "answers that nobody reads",
            "Content-Length: 0",
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000,
            BODY_BYTES,
        ),
    )
    nothing = Attack("nothing, for comparison", "", b"", 0, logged_in=True)
    return [nothing] + [
        Attack(f"{name}, {'logged in' if logged_in else 'a stranger'}", head, body, size, logged_in)
        for name, head, body, size in kinds
        for logged_in in (False, True)
    ]


def head(extra: str, *, logged_in: bool) -> bytes:
    """The head of a query."""
    lines = [f"POST {PATH} HTTP/1.1", "Host: localhost", "Content-Type: application/json", extra]
    if logged_in:
        pair = b64encode(f"{USER}:{SECRET}".encode()).decode()
        lines.append(f"Authorization: Basic {pair}")
    return "\r\n".join([*lines, "\r\n"]).encode()


@dataclass
class Bystander:
    """Asks on, and notes how long each query took."""

    port: int
    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    async def run(self) -> None:
        """Ask until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        request = head("Content-Length: 3", logged_in=True) + b"[7]"
        while True:
            began = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.seconds.append(time.perf_counter() - began)
            self.failed += not answer.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(PAUSE_SECONDS)

    def quantile(self, share: float) -> float:
        """Seconds that this share of the queries took at most."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def memory(pid: int) -> float:
    """MiB that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def send(attack: Attack, port: int, done: asyncio.Event) -> None:
    """One connection: send everything, then stay until the attack is over."""
    loop = asyncio.get_running_loop()
    with socket.socket() as caller, suppress(OSError):
        caller.settimeout(0)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await loop.sock_connect(caller, ("127.0.0.1", port))
        if attack.size:
            await loop.sock_sendall(caller, head(attack.head, logged_in=attack.logged_in))
        body, left = memoryview(attack.body), attack.size
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                while left:
                    piece = body[:left]
                    await loop.sock_sendall(caller, piece)
                    left -= len(piece)
        await done.wait()


def attack_from(attack: Attack, port: int) -> None:
    """Carry an attack out."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_attack(attack, port))


async def _attack(attack: Attack, port: int) -> None:
    over = asyncio.Event()
    callers = [asyncio.create_task(send(attack, port, over)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(HOLD_SECONDS)
    over.set()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)


async def run(attack: Attack, port: int, pid: int) -> bool:
    """Carry one attack out and print what it did; False if it did too much."""
    bystander = Bystander(port)
    asking = asyncio.create_task(bystander.run())
    await asyncio.sleep(1.0)
    bystander.seconds.clear()
    before = peak = memory(pid)
    # In a process of its own: the bystander must not wait for the attackers' loop.
    attacker = get_context("spawn").Process(target=attack_from, args=(attack, port))
    attacker.start()
    while attacker.is_alive():
        peak = max(peak, memory(pid))
        await asyncio.sleep(0.05)
    attacker.join()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await asyncio.sleep(AFTER_SECONDS)
    after = memory(pid)
    p50, p99 = bystander.quantile(0.5), bystander.quantile(0.99)
    print(
        f"{attack.name:<45} {before:6.0f} {peak:6.0f} {after:6.0f} {peak - before:+7.0f} MiB "
        f"{p50 * 1e3:7.1f} {p99 * 1e3:7.1f} {max(bystander.seconds) * 1e3:7.1f} ms "
        f"{len(bystander.seconds):5d} {bystander.failed:4d}",
        flush=True,
    )
    return peak - before < MEMORY_MIB and p99 < P99_SECONDS and not bystander.failed


@contextmanager
def node() -> Iterator[tuple[int, int]]:
    """A node with users and a worker; the HTTP port, and the pid of the gateway's process."""
    with tempfile.TemporaryDirectory() as directory:
        users = Path(directory) / "users.toml"
        users.write_text(
            f'[users.{USER}]\nsecret = "{hash_secret(SECRET)}"\npermissions = {{"*" = ["admin"]}}\n'
        )
        users.chmod(0o600)
        log = Path(directory) / "log"
        command = [sys.executable, "-m", "maitred", "up", "--json", "--port", "0", "--shards", "1"]
        command += ["--data", f"{directory}/data", "--set", f"users_file={users}"]
        command += ["--set", "gateway.port=0"]
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            url = f"maitred://{USER}:{SECRET.replace(' ', '%20')}@127.0.0.1:{told['port']}"
            serving = [sys.executable, "-m", "maitred", "worker", "benchmarks.attacks.http:app"]
            with subprocess.Popen([*serving, "--url", url], stderr=subprocess.DEVNULL) as worker:
                try:
                    yield int(told["http"].rpartition(":")[2]), _gateway(log)
                finally:
                    worker.terminate()
                    process.send_signal(signal.SIGTERM)
                    process.wait(timeout=30)


def _gateway(log: Path) -> int:
    for line in log.read_text().splitlines():
        said = json.loads(line)
        if said["event"] == "gateway ready":
            return int(said["pid"])
    raise RuntimeError("the log does not say which process the gateway is")


async def main_loop(chosen: list[Attack], port: int, pid: int) -> bool:
    """Wait for the worker, then run one attack after the other."""
    async with asyncio.timeout(60):
        served = False
        while not served:
            first = Bystander(port)
            asking = asyncio.create_task(first.run())
            await asyncio.sleep(1.0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            served = bool(first.seconds) and not first.failed
    print(f"{'attack':<45} before   peak  after    more         p50     p99     max queries failed")
    fine = [await run(attack, port, pid) for attack in chosen]
    return all(fine)


def main() -> int:
    """Run the attacks whose name contains the argument, or all."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.attacks.http", description=__doc__)
    options.add_argument("--only", default="", help="attacks whose name contains this")
    asked = options.parse_args()
    chosen = [attack for attack in attacks() if asked.only in attack.name]
    with node() as (port, pid):
        fine = asyncio.run(main_loop(chosen, port, pid))
    print("within the limits" if fine else "BEYOND THE LIMITS")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
