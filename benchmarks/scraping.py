"""Scrapes the metrics pages of a checkout's processes once a second, as Prometheus does.

A page that is never read costs next to nothing: most of the work is done when it is asked for. The
pages are found by the ports on which the processes listen, so a checkout needs no options for it,
and those of a version that has no such pages are not scraped.
"""

from __future__ import annotations

import random
import re
import threading
import urllib.request
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.tasks.processes import ROOT, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from benchmarks.against import Checkout
    from benchmarks.tasks.processes import Started

EVERY_SECONDS: Final = 0.5, 1.5
"""Once a second, but at random: the sides take turns of half a second, and one of them would have
all the scrapes in its own."""

ANSWERED_WITHIN: Final = 30
"""Seconds after which a page, or a port that may be one, is given up."""

MARKS: Final = {
    "node": "maitred_node_info{",
    "gateway": "maitred_http_connections ",
    "worker": "maitred_worker_info{",
}
"""What the page of each kind of process has, and no other page."""

_LISTENING: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


@contextmanager
def scraping(checkout: Checkout, processes: Collection[Started]) -> Iterator[None]:
    """Scrape all pages that these processes have now, until the block ends, and count it at the
    checkout; raise `Unavailable` if a page is not served any more."""
    pages = metrics_pages(processes)
    missing = MARKS.keys() - pages.keys()
    if checkout.root == ROOT and missing:
        raise Unavailable(f"{checkout.name} has no metrics of its {', '.join(sorted(missing))}")
    over, failed = threading.Event(), []

    def scrape() -> None:
        while True:
            for kind, url in pages.items():
                try:
                    _read(url)
                except (OSError, HTTPException) as problem:
                    failed.append(f"the metrics of the {kind} of {checkout.name}: {problem}")
                    return
                checkout.scrapes[kind] += 1
            if over.wait(random.uniform(*EVERY_SECONDS)):
                return

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise Unavailable(failed[0])


def metrics_pages(processes: Collection[Started]) -> dict[str, str]:
    """Return the address of the metrics of each kind of process."""
    found: dict[str, str] = {}
    for port in _ports({pid for process in processes for pid in process.pids()}):
        url = f"http://127.0.0.1:{port}/metrics"
        # Other ports speak the native protocol, and refuse this.
        with suppress(OSError, HTTPException):
            text = _read(url)
            found |= {kind: url for kind, mark in MARKS.items() if f"\n{mark}" in text}
    return found


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWERED_WITHIN) as answer:  # noqa: S310 - our own
        text: bytes = answer.read()
        return text.decode()


def _ports(pids: Collection[int]) -> list[int]:
    """The TCP ports on which the processes listen."""
    sockets = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended, or closed a file
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    match = _SOCKET.fullmatch(str(file.readlink()))
                    sockets |= {match[1]} if match else set()
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
