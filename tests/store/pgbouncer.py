"""A real PgBouncer in front of a real PostgreSQL."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from benchmarks.tasks.processes import free_port

from tests.debian import installed
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS = 60.0
"""The longest wait for it to listen, on a machine that runs other tests at the same time."""


@contextmanager
def pgbouncer(location: str, mode: str, directory: Path) -> Iterator[str]:
    """The location of a pooler with this `pool_mode`, which connects to the database at
    `location`. Skips, loudly, where none can be had."""
    program = installed("pgbouncer")
    if program is None:
        pytest.skip("NO PGBOUNCER HERE, so no real pooler is tested.")
    database = urlsplit(location)
    name, host = database.path[1:], parse_qs(database.query)["host"][0]
    port = free_port()
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n{name} = host={host} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n"
    )
    # It refuses to run as root, and its user has to reach the server's socket.
    user = [] if os.geteuid() else ["-u", Path(host).owner()]
    with (directory / "pgbouncer.log").open("w") as log:
        process = subprocess.Popen([program, "-q", *user, settings], stderr=log)
    try:
        wait_until(lambda: _listens(port), "the pooler listens", WAIT_SECONDS)
        yield f"postgresql://postgres@127.0.0.1:{port}/{name}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
