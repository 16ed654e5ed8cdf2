"""A flood of wrong secrets, and users who log in for the first time meanwhile.

    python -m benchmarks.attacks.login_flood [--names 1000000] [--same-address] [--addresses 8]

Starts `maitred up` with a user for each legitimate login, so that nobody is remembered. A process
floods both listeners from 127.0.0.2 and up, each attempt with a new connection and a new secret.
Meanwhile users log in from 127.0.0.1, natively and over HTTP in turn, one attempt each without a
retry. Prints the share of them that was in within two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from maitred.protocol import cql
from maitred.protocol.frames import HEADER, HEADER_BYTES, REQUEST, Opcode, encode_frame
from maitred.protocol.refusals import decode_error
from maitred.security.secrets import hash_secret

GOAL_SECONDS: Final = 2.0
GOAL_SHARE: Final = 0.95
PAUSE_SECONDS: Final = 0.25
"""Between two legitimate logins."""
WARM_UP_SECONDS: Final = 3.0
GIVE_UP_SECONDS: Final = 20.0


async def native(address: str, port: int, user: str, secret: str) -> str:
    """One login at the native port; `in`, or the code of the refusal."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))

    async def ask(opcode: Opcode, body: bytes) -> tuple[int, bytes]:
        writer.write(encode_frame(REQUEST, 0, 0, opcode, body))
        _, _, _, answer, size = HEADER.unpack(await reader.readexactly(HEADER_BYTES))
        return answer, await reader.readexactly(size)

    try:
        await ask(Opcode.STARTUP, cql.encode_startup({"CQL_VERSION": "3.0.0"}))
        answer, body = await ask(Opcode.AUTH_RESPONSE, cql.encode_credentials(user, secret))
        return "in" if answer == Opcode.AUTH_SUCCESS else decode_error(body).code
    finally:
        writer.transport.abort()


async def over_http(address: str, port: int, user: str, secret: str) -> str:
    """The same over HTTP; what the user asks for does not exist."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        pair = b64encode(f"{user}:{secret}".encode()).decode()
        writer.write(
            f"GET /v1/shop/queues/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Basic {pair}\r\n\r\n".encode()
        )
        status = int((await reader.readline()).split()[1])
        if status in {403, 404}:
            return "in"
        text = (await reader.read()).partition(b"\r\n\r\n")[2]
        return str(json.loads(text)["error"]["code"])
    finally:
        writer.transport.abort()


def flood(ports: tuple[int, int], addresses: list[str], names: int, connections: int) -> None:
    """Try wrong secrets until this process is ended; every fifth second, say how many."""
    tried = 0

    async def attacker(number: int, chance: random.Random) -> None:
        nonlocal tried
        login, port = ((native, ports[0]), (over_http, ports[1]))[number % 2]
        while True:
            name, secret = f"user {chance.randrange(names)}", f"{chance.random()}"
            with suppress(OSError, asyncio.IncompleteReadError, IndexError, ValueError):
                await login(chance.choice(addresses), port, name, secret)
            tried += 1

    async def main() -> None:
        tasks = [
            asyncio.create_task(attacker(number, random.Random(number)))
            for number in range(connections)
        ]
        before = 0
        while tasks:
            await asyncio.sleep(5)
            print(f"  the flood: {(tried - before) / 5:,.0f} attempts a second", flush=True)
            before = tried

    asyncio.run(main())


async def log_in(ports: tuple[int, int], users: list[str], address: str) -> list[tuple[str, float]]:
    """What came of each login, and after how many seconds."""

    async def one(number: int, user: str) -> tuple[str, float]:
        login, port = ((native, ports[0]), (over_http, ports[1]))[number % 2]
        began = time.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                code = await login(address, port, user, user)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, IndexError) as problem:
            code = type(problem).__name__
        return code, time.monotonic() - began

    tasks = []
    for number, user in enumerate(users):
        tasks.append(asyncio.create_task(one(number, user)))
        await asyncio.sleep(PAUSE_SECONDS)
    return await asyncio.gather(*tasks)


def report(outcomes: list[tuple[str, float]]) -> bool:
    """Print the share of each listener; true if the goal is met for both."""
    met = True
    for name, found in (("native", outcomes[::2]), ("http", outcomes[1::2])):
        waits = sorted(seconds for code, seconds in found if code == "in")
        in_time = sum(seconds < GOAL_SECONDS for seconds in waits)
        share = in_time / len(found)
        met = met and share >= GOAL_SHARE
        refused = sorted({code for code, _ in found} - {"in"})
        median = f"{waits[len(waits) // 2]:.2f} s" if waits else "-"
        longest = f"{waits[-1]:.2f} s" if waits else "-"
        print(
            f"{name:7} {in_time} of {len(found)} in within {GOAL_SECONDS:g} s ({share:.0%}), "
            f"median {median}, longest {longest}" + (f"; refused: {refused}" if refused else "")
        )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logins", type=int, default=60, help="legitimate ones, in all")
    parser.add_argument("--connections", type=int, default=100, help="of the flood, at a time")
    parser.add_argument("--names", type=int, default=10, help="in which the flood comes")
    parser.add_argument("--addresses", type=int, default=1, help="of the flood")
    parser.add_argument("--same-address", action="store_true", help="users share the flood's")
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    addresses = [f"127.0.0.{2 + number}" for number in range(min(given.addresses, 200))]
    users = [f"legitimate {number}" for number in range(given.logins)]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "users.toml")
        file.write_text(
            "".join(
                f'[users."{name}"]\nsecret = "{hash_secret(name)}"\n'
                f'[users."{name}".permissions]\nshop = ["query"]\n'
                for name in users
            )
        )
        file.chmod(0o600)
        node = subprocess.Popen(
            [sys.executable, "-m", "maitred", "up", "--json", "--port", "0", "--shards",
             str(given.shards), "--data", f"{scratch}/data", "--users-file", str(file),
             "--set", "gateway.port=0", "--log-level", "error"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert node.stdout is not None
            ready = json.loads(node.stdout.readline())
            ports = ready["port"], urlsplit(ready["http"]).port
            arguments = (ports, addresses, given.names, given.connections)
            flooding = multiprocessing.Process(target=flood, args=arguments, daemon=True)
            flooding.start()
            time.sleep(WARM_UP_SECONDS)
            home = addresses[0] if given.same_address else "127.0.0.1"
            outcomes = asyncio.run(log_in(ports, users, home))
            began = time.monotonic()
            hash_secret("as long as a verification")
            print(f"one verification takes {time.monotonic() - began:.2f} s under this load")
            flooding.kill()
            flooding.join()
        finally:
            os.kill(node.pid, signal.SIGTERM)
            node.wait(30)
    sys.exit(0 if report(outcomes) else 1)


if __name__ == "__main__":
    main()
