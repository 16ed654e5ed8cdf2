"""A highly available PostgreSQL: etcd, and three servers with Patroni, each on a host of its own.

Patroni is installed in an environment under `.venv-peers`. etcd is the system's, or, for root on
Debian, is unpacked from its package without installing it.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.database import OWNER, binaries
from tests.cluster.network import DATABASE

from benchmarks.tasks.environments import FOLDER, bin_of
from benchmarks.tasks.processes import Unavailable

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.cluster.network import Host, Network

FIRST_SERVER, SERVERS = 21, 3
UP_SECONDS = 120.0
DOWNLOAD_SECONDS = 120
REQUIREMENTS = Path(__file__).parent / "requirements"

CONFIGURATION = """
scope: maitred
name: {name}
restapi: {{listen: "{address}:8008", connect_address: "{address}:8008"}}
etcd3: {{hosts: "{etcd}:2379"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    primary_start_timeout: 0
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 150, wal_keep_size: 512MB, fsync: "off"}}
  initdb: [{{encoding: UTF8}}, {{auth: trust}}]
postgresql:
  listen: "{address}:5432"
  connect_address: "{address}:5432"
  data_dir: "{folder}/data"
  bin_dir: "{binaries}"
  pgpass: "{folder}/pgpass"
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: postgres}}
    rewind: {{username: postgres}}
  parameters: {{unix_socket_directories: "{folder}"}}
  pg_hba:
    - local all all trust
    - local replication all trust
    - host all all 127.0.0.0/8 trust
    - host replication all 127.0.0.0/8 trust
"""


@cache
def etcd() -> Path:
    """The program `etcd`."""
    if found := shutil.which("etcd"):
        return Path(found)
    program = FOLDER / "etcd" / "usr" / "bin" / "etcd"
    if not program.exists():
        folder = FOLDER / "etcd"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for command in (
                ["apt-get", "download", "etcd-server"],
                ["sh", "-c", "dpkg -x etcd-server_*.deb ."],
            ):
                subprocess.run(
                    command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_SECONDS
                )
        except (OSError, subprocess.SubprocessError) as problem:
            raise Unavailable(
                f"there is no etcd (apt-get install etcd-server): {problem}"
            ) from None
    return program


def python() -> str:
    """A Python that the owner of the servers can run too: root's own may be in root's folder."""
    ours = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in (ours, *ours.parents)):
        return str(ours)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in ("/usr/bin", "/usr/local/bin"):
        if (Path(folder) / version).exists():
            return f"{folder}/{version}"
    raise Unavailable(f"only root can run {ours}, and the system has no {version}")


def packages() -> str:
    """The folder with Patroni's modules."""
    return str(next(bin_of("patroni", REQUIREMENTS).parent.glob("lib/*/site-packages")))


class PatroniServer:
    """One host with PostgreSQL and its Patroni."""

    def __init__(self, number: int, host: Host, folder: Path) -> None:
        self.name = f"server{number}"
        self.host = host
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def nearby(self) -> str:
        """Its database through the Unix socket, from any namespace."""
        return f"postgresql:///postgres?host={self.folder}&port=5432&user=postgres"

    def pids(self) -> list[int]:
        """PostgreSQL's processes, the first one first."""
        try:
            first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        except (OSError, IndexError):
            return []
        found = [first]
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                if f"\nPPid:\t{first}\n" in status.read_text():
                    found.append(int(status.parent.name))
        return found

    def signal_database(self, number: int) -> None:
        """Send a signal to all of PostgreSQL's processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal_patroni(self, number: int) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)


class Patroni:
    """The servers; ended and removed after the block."""

    def __init__(self, network: Network) -> None:
        if not network.can_cut:
            raise Unavailable("three servers need hosts of their own")
        self._network = network
        self._folder = Path(tempfile.mkdtemp(prefix="maitred-patroni-", dir="/tmp"))
        self._user = pwd.getpwnam(OWNER)
        self._logs = (self._folder / "log").open("w")
        os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.servers = [
            PatroniServer(number, network.host(FIRST_SERVER + number), self._made(f"pg{number}"))
            for number in range(SERVERS)
        ]

    @property
    def store(self) -> str:
        """What nodes are told as `--store`: all servers."""
        hosts = ",".join(f"{server.host.address}:5432" for server in self.servers)
        return f"postgresql://postgres@{hosts}/postgres"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            process.wait()
        for server in self.servers:
            server.signal_database(signal.SIGCONT)
            server.signal_database(signal.SIGKILL)
        self._logs.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def primary(self) -> PatroniServer | None:
        """The server that Patroni says leads."""
        for member in self._members():
            if member["role"] in ("leader", "master") and member["state"] == "running":
                return next(one for one in self.servers if one.name == member["name"])
        return None

    def is_whole(self) -> bool:
        """Whether one leads, and the two others follow, one of them synchronously."""
        members = self._members()
        states = sorted(member["state"] for member in members)
        roles = {member["role"] for member in members}
        return states == ["running", "streaming", "streaming"] and "sync_standby" in roles

    def wait_until_whole(self) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while not self.is_whole():
            if time.monotonic() > deadline:
                raise Unavailable(f"the servers are not whole: {self._members()}")
            time.sleep(0.2)

    def switch_over(self) -> None:
        """Let a standby lead, in order."""
        primary = self.primary()
        assert primary is not None
        asked = json.dumps({"leader": primary.name})
        self._rest(primary, "/switchover", asked)

    def _start(self) -> None:
        hub = self._network.host(DATABASE)
        self._run(
            hub,
            [
                str(etcd()),
                f"--data-dir={self._made('etcd')}",
                f"--listen-client-urls=http://{hub.address}:2379",
                f"--advertise-client-urls=http://{hub.address}:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
        )
        for server in self.servers:
            configuration = server.folder / "patroni.yml"
            configuration.write_text(
                CONFIGURATION.format(
                    name=server.name,
                    address=server.host.address,
                    etcd=hub.address,
                    folder=server.folder,
                    binaries=binaries(),
                )
            )
            server.process = self._run(server.host, [python(), "-m", "patroni", str(configuration)])
        self.wait_until_whole()

    def _members(self) -> list[dict[str, Any]]:
        for server in self.servers:
            text = self._rest(server, "/cluster")
            if text:
                members: list[dict[str, Any]] = json.loads(text)["members"]
                return members
        return []

    def _rest(self, server: PatroniServer, path: str, body: str = "") -> str:
        """Ask Patroni's REST API, from a host that is never cut off."""
        words = ["curl", "--silent", "--max-time", "2"]
        if body:
            words += ["-X", "POST", "-H", "Content-Type: application/json", "-d", body]
            words[3] = "60"
        words.append(f"http://{server.host.address}:8008{path}")
        done = subprocess.run(
            self._network.host(DATABASE).command(words),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(mode=0o700)
        os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        return folder

    def _run(self, host: Host, command: list[str]) -> subprocess.Popen[bytes]:
        user = ["setpriv", f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}",
                "--clear-groups", "--"]  # fmt: skip
        process = subprocess.Popen(
            host.command([*user, *command]),
            cwd=self._folder,
            stdout=self._logs,
            stderr=self._logs,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": packages(), "HOME": str(self._folder)},
        )
        self._processes.append(process)
        return process
