"""The HTTP API under wrk with 1,024 connections, against a server that is nothing but httptools.

The bare server answers the very bytes that the HTTP API answers, which were asked for once before.
wrk is Debian's, installed if it is not there and we may.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measuring import Result
from benchmarks.queries.asking import PAYLOAD
from benchmarks.queries.running import BIN, PEERS, Figures, Run, cpu_seconds
from benchmarks.tasks.processes import Unavailable, free_port, wait_for_port

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.tasks.processes import Command

OURS = "HTTP API"
BARE = "bare httptools"
CONNECTIONS = 1_024
THREADS = 2
SLOTS = 256
SECONDS = 5
QUICK_SECONDS = 2
WARM_SECONDS = 1
PATH = "/v1/default/queues/echo/query"
READY_WITHIN = 30

SHARE = 0.2
P99_SECONDS = 1.0

SCRIPT = """\
wrk.method = "POST"
wrk.body = %s
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("told %%d %%d %%d %%d %%d %%d %%d %%d %%d\\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
"""


def wrk() -> str:
    """Where it is; installed by apt-get if we are root."""
    if found := shutil.which("wrk"):
        return found
    apt = shutil.which("apt-get")
    if apt and os.geteuid() == 0:
        print("  installing wrk with apt-get", flush=True)
        subprocess.run([apt, "install", "-y", "wrk"], capture_output=True, timeout=120, check=False)
    if found := shutil.which("wrk"):
        return found
    raise Unavailable("there is no wrk (apt-get install wrk)")


def post(port: int, path: str, body: bytes, *headers: str) -> bytes:
    """The whole answer to one request, as it comes."""
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, *headers, "", ""]).encode()
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(head + body)
        answer = b""
        while True:
            piece = connection.recv(65_536)
            answer += piece
            found = re.search(rb"(?i)content-length: *(\d+)", answer)
            end = answer.find(b"\r\n\r\n")
            if not piece or (found and end >= 0 and len(answer) >= end + 4 + int(found[1])):
                return answer


def ready(port: int, path: str, body: bytes, *headers: str) -> bytes:
    """The answer, when it is a good one: node, gateway and worker have to come up first."""
    until = time.monotonic() + READY_WITHIN
    while True:
        try:
            answer = post(port, path, body, *headers)
        except OSError as error:
            answer = str(error).encode()
        if b" 200 " in answer[:16]:
            return answer
        if time.monotonic() > until:
            raise Unavailable(f"the HTTP API answers {answer[:300]!r}")
        time.sleep(0.05)


def loaded(
    port: int, script: Path, seconds: float, pids: dict[str, int], connections: int = CONNECTIONS
) -> Figures:
    """What wrk says, and the CPU of those who served."""
    command: Command = [wrk(), f"-t{THREADS}", f"-c{connections}", f"-d{seconds:g}s", "-s", script]
    command += ["--timeout", "10s", f"http://127.0.0.1:{port}{PATH}"]
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    words = [str(word) for word in command]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    (told,) = [line for line in said.splitlines() if line.startswith("told ")]
    requests, microseconds, p50, p99, *errors = map(int, told.split()[1:])
    figures = {
        "answers": float(requests),
        "rate": requests / microseconds * 1e6,
        "p50 ms": p50 / 1e3,
        "p99 ms": p99 / 1e3,
        "errors": float(sum(errors)),
    }
    for name, pid in pids.items():
        spent = cpu_seconds(pid) - before[name]
        figures[f"{name} cpu us"] = spent / max(requests, 1) * 1e6
    return figures


def measure(run: Run) -> None:
    section = run.section
    try:
        run.told([wrk(), f"-t{THREADS}", f"-c{CONNECTIONS}", "-d5s", "-s", "post.lua", PATH])
    except Unavailable as reason:
        section.absent["HTTP"] = str(reason)
        print(f"  SKIPPED: {reason}")
        return
    body = json.dumps([PAYLOAD])
    script = run.folder / "post.lua"
    script.write_text(SCRIPT % json.dumps(body))
    node = run.node()
    worker = run.worker(node, SLOTS, "echo")
    answer = ready(node.http_port, PATH, body.encode(), "Content-Type: application/json")
    same = run.folder / "answer"
    same.write_bytes(answer)
    port = free_port()
    command: Command = [BIN / "python", "-m", f"{PEERS}.httptools", str(port), same]
    bare = run.start("bare", command)
    wait_for_port(port, bare)
    served = {
        BARE: (port, {"server": bare.process.pid}),
        OURS: (
            node.http_port,
            {
                "gateway": node.gateway,
                "shard": node.shard,
                "worker": worker.process.pid,
            },
        ),
    }
    for name, (at, who) in served.items():
        loaded(at, script, WARM_SECONDS, who)
        section.rounds[name] = []
    for number in range(run.rounds):
        for name, (at, who) in served.items():
            figures = loaded(at, script, QUICK_SECONDS if run.quick else SECONDS, who)
            section.rounds[name].append(figures)
            print(
                f"  round {number + 1}: {name} {figures['rate']:,.0f}/s, p99 "
                f"{figures['p99 ms']:.0f} ms, {figures['errors']:.0f} errors",
                flush=True,
            )
    for name, rounds in section.rounds.items():
        section.medians[name] = {of: median(each[of] for each in rounds) for of in rounds[0]}
        section.medians[name]["errors"] = sum(each["errors"] for each in rounds)
    ours, theirs = section.medians[OURS], section.medians[BARE]
    section.results += [
        Result(
            f"HTTP API, {CONNECTIONS:,} connections, share of bare httptools' requests/s",
            ours["rate"] / theirs["rate"],
            SHARE,
            at_least=True,
            ours=f"ours {ours['rate']:,.0f}/s",
            peer=f"bare {theirs['rate']:,.0f}/s",
        ),
        Result(
            f"HTTP API, {CONNECTIONS:,} connections, p99 in seconds",
            ours["p99 ms"] / 1e3,
            P99_SECONDS,
            at_least=False,
            ours=f"ours {ours['p99 ms']:.0f} ms",
            peer=f"bare {theirs['p99 ms']:.0f} ms",
        ),
        Result(
            f"HTTP API, {CONNECTIONS:,} connections, answers without an error, share",
            1.0 if ours["errors"] == 0 else 0.0,
            1,
            at_least=True,
            ours=f"{ours['errors']:.0f} errors",
            peer=f"bare {theirs['errors']:.0f} errors",
        ),
    ]
