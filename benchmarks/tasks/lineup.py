"""Who takes part: which server each one gets, how its worker is started, and with what settings.

Each is set up for throughput with one worker process, and `settings` says how. How sure it is that
a setting is the best one, docs/benchmarks.md says.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.tasks.environments import bin_of, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.tasks.processes import Command

OURS = "maitred"


@dataclass(frozen=True)
class Peer:
    """One of the compared."""

    name: str
    module: str
    """In `benchmarks.tasks.peers`."""
    scheme: str
    loses: str
    """What a crash of the server's machine takes with it."""
    settings: str
    server: Callable[[int, Path], Command]
    """Given a port and a folder for data."""
    worker: Callable[[Path], Command]
    """Given where the programs of the environment are. The rest is in the environment's variables:
    `producing.URL`, `recording.RECORD`."""
    bin: Callable[[], Path]
    """Where its programs are; makes the environment if there is none."""
    versions: Callable[[], str]


def _redis(port: int, folder: Path) -> Command:
    # No snapshots and no log: the fastest that Redis can be, for those that want nothing else.
    quiet: Command = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
    at: Command = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
    return [redis_server(), *at, *quiet]


def _redis_version() -> str:
    words = _said(redis_server(), "--version").split()
    return next((word.replace("v=", "redis-server ") for word in words if "v=" in word), "")


def _nats(port: int, folder: Path, *, always: bool) -> Command:
    configuration = folder / "nats.conf"
    synced = "sync_interval: always" if always else ""
    configuration.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"\n {synced} }}\n'
    )
    return [bin_of("jetstream") / "nats-server", "--config", configuration]


def _nats_version() -> str:
    return _said(bin_of("jetstream") / "nats-server", "--version").replace(": v", " ")


def _said(*command: str | Path) -> str:
    return subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True
    ).stdout.strip()


def _pinned(module: str, *packages: str) -> str:
    """The versions of some packages, as the requirements have them."""
    lines = (Path(__file__).parent / "requirements" / f"{module}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    return ", ".join(f"{package} {pins[package]}" for package in packages)


def _on_redis(
    name: str, module: str, packages: tuple[str, ...], worker: Callable[[Path], Command], how: str
) -> Peer:
    return Peer(
        name=name,
        module=module,
        scheme="redis",
        loses="everything: Redis without snapshots and log",
        settings=how,
        server=_redis,
        worker=worker,
        bin=lambda: bin_of(module),
        versions=lambda: f"{_pinned(module, *packages)}, {_redis_version()}",
    )


def _jetstream(name: str, loses: str, *, always: bool) -> Peer:
    return Peer(
        name=name,
        module="jetstream",
        scheme="nats",
        loses=loses,
        settings="file storage, work queue, explicit acknowledgement, "
        f"{'sync_interval always' if always else 'default sync_interval (2 min)'}",
        server=lambda port, folder: _nats(port, folder, always=always),
        worker=lambda bin_: [bin_ / "python", "-m", "benchmarks.tasks.peers.jetstream"],
        bin=lambda: bin_of("jetstream"),
        versions=lambda: f"{_pinned('jetstream', 'nats-py')}, {_nats_version()}",
    )


def _celery(bin_: Path) -> Command:
    app: Command = [bin_ / "celery", "-A", "benchmarks.tasks.peers.celery", "worker"]
    alone: Command = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [*app, "--pool", "solo", "--loglevel", "error", *alone]


def _dramatiq(bin_: Path) -> Command:
    module = "benchmarks.tasks.peers.dramatiq"
    ahead = "dramatiq_queue_prefetch=1000"
    return ["env", ahead, bin_ / "dramatiq", module, "--processes", "1", "--threads", "8"]


def _taskiq(bin_: Path) -> Command:
    app: Command = [bin_ / "taskiq", "worker", "benchmarks.tasks.peers.taskiq:broker"]
    limits: Command = ["--workers", "1", "--max-async-tasks", "64", "--max-prefetch", "64"]
    return [*app, *limits, "--no-parse", "--log-level", "ERROR"]


def _arq(bin_: Path) -> Command:
    module = "benchmarks.tasks.peers.arq"
    return [bin_ / "arq", f"{module}.WorkerSettings", "--custom-log-dict", f"{module}.QUIET"]


def _maitred() -> Peer:
    bin_ = Path(sys.executable).parent

    def server(port: int, folder: Path) -> Command:
        up: Command = [bin_ / "maitred", "up", "--port", str(port), "--shards", "1"]
        up += ["--set", "gateway.port=0"]
        return [*up, "--data", folder, "--log-level", "warning"]

    return Peer(
        name=OURS,
        module="maitred",
        scheme="maitred",
        loses="nothing: on disk with fsync, or done, before it is acknowledged",
        settings="one shard, SQLite, 64 slots",
        server=server,
        worker=lambda _: [
            *(bin_ / "maitred", "worker", "benchmarks.tasks.peers.maitred:app"),
            *("--slots", "64", "--log-level", "warning"),
        ],
        bin=lambda: bin_,
        versions=lambda: _said(bin_ / "maitred", "--version"),
    )


PEERS = (
    _maitred(),
    _on_redis(
        "Celery + Redis",
        "celery",
        ("celery", "kombu", "redis"),
        _celery,
        "solo pool, no limit to prefetching; no results, events, rate limits, remote control",
    ),
    _on_redis(
        "Dramatiq + Redis",
        "dramatiq",
        ("dramatiq", "redis"),
        _dramatiq,
        "8 threads, 1,000 messages prefetched",
    ),
    _on_redis(
        "Taskiq + Redis",
        "taskiq",
        ("taskiq", "taskiq-redis", "redis"),
        _taskiq,
        "RedisStreamBroker, 100 read and 64 run at a time, orjson, --no-parse, uvloop",
    ),
    _on_redis(
        "arq + Redis",
        "arq",
        ("arq", "redis"),
        _arq,
        "64 jobs at a time, polls every 1 ms, no results kept, no log, uvloop",
    ),
    _jetstream("JetStream, fsync", "nothing: fsync on every write", always=True),
    _jetstream("JetStream", "up to 2 minutes: its default of when to fsync", always=False),
)
