"""The processes of one checkout for `--against`: a node, a worker and a native client, or wrk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.against import Slice
from benchmarks.queries import echo, http
from benchmarks.queries.asking import PAYLOAD
from benchmarks.queries.running import BIN, Run, Section
from benchmarks.scraping import scraping
from benchmarks.tasks.processes import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import ExitStack

    from benchmarks.against import Checkout, Loads

SECTIONS = ("echo", "http")
SECONDS = 0.5
"""One slice of the native client."""

QUICK_SECONDS = 0.1
HTTP_SECONDS = 1
"""One slice of wrk, which takes whole seconds."""

CONNECTIONS = 256
"""One a slot: fewer than in the benchmark, so that wrk itself does not fill a core."""


def start(names: Collection[str], *, quick: bool) -> Callable[[ExitStack, Checkout], Loads]:
    """How a checkout is started; CPU is that of node, worker and client, without wrk."""
    seconds = QUICK_SECONDS if quick else SECONDS

    def begin(stack: ExitStack, checkout: Checkout) -> Loads:
        run = Run(
            Section(),
            quick=quick,
            rounds=1,
            search_path=checkout.search_path,
            environment=checkout.environment,
        )
        stack.enter_context(run)
        node = run.node()
        run.worker(node, http.SLOTS, "echo")
        client = run.client("maitred", BIN, node.address)
        client.tell(in_flight=1, seconds=QUICK_SECONDS)  # the worker is ready, and has its metrics
        stack.enter_context(scraping(checkout, run.processes))

        def cpu_seconds() -> float:
            return sum(process.cpu_seconds() for process in run.processes)

        def asked(in_flight: int) -> Slice:
            before = cpu_seconds()
            figures = client.tell(in_flight=in_flight, seconds=seconds)
            spent = cpu_seconds() - before
            return Slice(figures["answers"], figures["answers"] / figures["rate"], spent)

        body = json.dumps([PAYLOAD])
        script = run.folder / "post.lua"
        script.write_text(http.SCRIPT % json.dumps(body))

        def requested() -> Slice:
            before = cpu_seconds()
            figures = http.loaded(node.http_port, script, HTTP_SECONDS, {}, CONNECTIONS)
            spent = cpu_seconds() - before
            if figures["errors"]:
                raise Unavailable(
                    f"{figures['errors']:.0f} HTTP requests of {checkout.name} failed"
                )
            return Slice(int(figures["answers"]), figures["answers"] / figures["rate"], spent)

        loads: Loads = {}
        if "echo" in names:
            loads[f"echo, {echo.MANY} in flight"] = lambda: asked(echo.MANY)
            loads["echo, 1 in flight"] = lambda: asked(1)
        if "http" in names:
            http.wrk()
            http.ready(node.http_port, http.PATH, body.encode(), "Content-Type: application/json")
            loads[f"HTTP, {CONNECTIONS} connections"] = requested
        return loads

    return begin
