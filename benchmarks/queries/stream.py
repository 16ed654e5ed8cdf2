"""A result of 100 MB as a stream, against a bare socket; and what memory that takes.

Nobody may have it in memory whole, neither the worker nor whoever takes it: the growth of each
process while the stream runs is measured at its highest.
"""

from __future__ import annotations

import json
import socket
import time
from statistics import median

from benchmarks.measuring import Result
from benchmarks.queries.http import ready
from benchmarks.queries.running import BIN, Figures, Memory, Run
from benchmarks.tasks.processes import Unavailable, free_port

OURS = "native client"
BARE = "bare socket"
DOOR = "HTTP API"
TOTAL = 100 * 2**20
ROWS = (64 * 1024, 2**20)
"""Bytes of a row."""

SHARE = 0.5
GROWTH_MB = 32.0
PATH = "/v1/default/queues/rows/query"
HEADERS = ("Content-Type: application/json", "Accept: application/msgpack")


def measure(run: Run) -> None:
    section = run.section
    port = free_port()
    run.server("bare", BIN, port)
    bare = run.client("bare", BIN, f"127.0.0.1:{port}")
    node = run.node()
    worker = run.worker(node, 8, "rows", "echo")
    client = run.client("maitred", BIN, node.address)
    native = {"worker": worker.process.pid, "client": client.pid, "shard": node.shard}
    over_http = {"worker": worker.process.pid, "gateway": node.gateway, "shard": node.shard}
    through_the_door = True
    try:
        small = json.dumps([ROWS[0], ROWS[0]]).encode()
        ready(node.http_port, PATH, small, *HEADERS, "Connection: close")
    except Unavailable as reason:
        section.absent[DOOR] = str(reason)
        print(f"  {DOOR}: ABSENT, {reason}")
        through_the_door = False
    client.tell(bytes=4 * 2**20, row=ROWS[0])  # the first one connects and allocates
    for number in range(run.rounds):
        told = []
        for row in ROWS:
            for name in (BARE, OURS, DOOR):
                if name == BARE:
                    figures = _rate(bare.tell(bytes=TOTAL))
                elif name == OURS:
                    memory = Memory(**native)
                    figures = _rate(client.tell(bytes=TOTAL, row=row)) | _grown(memory)
                elif through_the_door:
                    memory = Memory(**over_http)
                    figures = _rate(_taken(node.http_port, row)) | _grown(memory)
                else:
                    continue
                section.rounds.setdefault(key(name, row), []).append(figures)
                told.append(f"{key(name, row)} {figures['MB/s']:,.0f} MB/s")
        print(f"  round {number + 1}: {'; '.join(told)}", flush=True)
    for of, rounds in section.rounds.items():
        # Memory: the highest that was seen, and not the median.
        section.medians[of] = {
            name: (median if name == "MB/s" else max)(each[name] for each in rounds)
            for name in rounds[0]
        }
    for row in ROWS:
        section.results += _goals(section.medians, row)


def key(name: str, row: int) -> str:
    return f"{name}, rows of {row // 1024} KiB"


def _rate(answer: dict[str, float]) -> Figures:
    return {"MB/s": answer["bytes"] / answer["seconds"] / 1e6}


def _grown(memory: Memory) -> Figures:
    return {f"{name} MB": grown for name, grown in memory.growth().items()}


def _taken(port: int, row: int) -> dict[str, float]:
    """The whole answer over HTTP, by the least that a client can be: it counts the bytes."""
    body = json.dumps([TOTAL, row]).encode()
    lines = [f"POST {PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *HEADERS, "Connection: close", "", ""]).encode()
    taken, place = 0, bytearray(2**20)
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(head + body)
        while count := connection.recv_into(place):
            if taken == 0 and b" 200 " not in place[:16]:
                raise Unavailable(f"the HTTP API answers {bytes(place[:count])[:300]!r}")
            taken += count
    if taken < TOTAL:
        raise Unavailable(f"the HTTP API gave {taken:,} bytes of {TOTAL:,}")
    return {"bytes": TOTAL, "seconds": time.perf_counter() - started}


def _goals(medians: dict[str, Figures], row: int) -> list[Result]:
    found = []
    bare = medians[key(BARE, row)]
    for name in (OURS, DOOR):
        figures = medians.get(key(name, row))
        if figures is None:
            continue
        if name == OURS:
            found.append(
                Result(
                    f"stream of 100 MB, {key(name, row)}, share of a bare socket's rate",
                    figures["MB/s"] / bare["MB/s"],
                    SHARE,
                    at_least=True,
                    ours=f"ours {figures['MB/s']:,.0f} MB/s",
                    peer=f"bare {bare['MB/s']:,.0f} MB/s",
                )
            )
        grown = {of: mb for of, mb in figures.items() if of != "MB/s"}
        found.append(
            Result(
                f"stream of 100 MB, {key(name, row)}, growth of the largest process in MB",
                max(*grown.values(), 0.1),
                GROWTH_MB,
                at_least=False,
                ours=", ".join(f"{of.removesuffix(' MB')} {mb:.1f}" for of, mb in grown.items()),
                peer=f"{figures['MB/s']:,.0f} MB/s",
            )
        )
    return found
