"""HAProxy and nginx before the providers, from Debian's packages.

All are told the sizes of the pools as weights, which the contest allows. Beyond that: `maxconn` and
`max_conns` are tuned to the mean permits of the contest, which is more than anybody may know there;
`agent` is told by the providers' agents what a worker would tell our gateway, every 100 ms.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.tasks.processes import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.contest.scale import Scale
    from benchmarks.tasks.processes import Command

INSTALLED_WITHIN = 180
WEIGHT_MAX = 256


@dataclass(frozen=True)
class Server:
    """Where a provider listens."""

    port: int
    agent_port: int


def program(name: str) -> str:
    """Where it is; installed by apt-get if we are root."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if found := shutil.which(name, path=path):
        return found
    apt = shutil.which("apt-get")
    if apt and os.geteuid() == 0:
        print(f"  installing {name} with apt-get", flush=True)
        install = [apt, "install", "-y", "--no-install-recommends", name]
        # Without this Debian would start it as a service, at every start of the machine.
        environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            install, capture_output=True, timeout=INSTALLED_WITHIN, check=False, env=environment
        )
    if found := shutil.which(name, path=path):
        return found
    raise Unavailable(f"there is no {name} (apt-get install {name})")


def command(
    rival: str, scale: Scale, port: int, servers: list[Server], folder: Path
) -> tuple[Command, str]:
    """How it is started, and its configuration, which is written to a file of the folder."""
    kind, _, how = rival.partition(" ")
    file = folder / f"{rival.replace(' ', '-')}.conf"
    configuration = (_haproxy if kind == "haproxy" else _nginx)(how, scale, port, servers, folder)
    file.write_text(configuration)
    if kind == "haproxy":
        return [program("haproxy"), "-db", "-q", "-f", file], configuration
    words: Command = [program("nginx"), "-e", folder / "nginx.log", "-p", folder, "-c", file]
    return words, configuration


def _weights(scale: Scale) -> list[int]:
    times = min(1.0, WEIGHT_MAX / max(scale.pools))
    return [round(pool * times) for pool in scale.pools]


def _haproxy(how: str, scale: Scale, port: int, servers: list[Server], _: Path) -> str:
    lines = []
    of_each = zip(servers, _weights(scale), scale.pools, scale.usual_permits, strict=True)
    for number, (server, weight, pool, usual) in enumerate(of_each):
        line = f"  server provider-{number} 127.0.0.1:{server.port} weight {weight}"
        if how == "maxconn":
            line += f" maxconn {usual}"
        elif how == "agent":
            line += f" maxconn {pool} agent-check agent-port {server.agent_port} agent-inter 100ms"
        lines.append(line)
    timeout = f"{scale.timeout_seconds:g}s"
    return "\n".join(
        [
            "global",
            "  nbthread 1",
            f"  maxconn {4 * scale.connections + 100}",
            "defaults",
            "  mode http",
            "  http-reuse always",
            f"  timeout connect {timeout}",
            "  timeout client 120s",
            "  timeout http-keep-alive 120s",
            f"  timeout server {timeout}",
            f"  timeout queue {timeout}",
            "frontend door",
            f"  bind 127.0.0.1:{port} backlog 4096",
            "  default_backend providers",
            "backend providers",
            "  balance leastconn",
            *lines,
            "",
        ]
    )


def _nginx(how: str, scale: Scale, port: int, servers: list[Server], folder: Path) -> str:
    lines = []
    for server, weight, usual in zip(servers, _weights(scale), scale.usual_permits, strict=True):
        most = f" max_conns={usual}" if how == "max_conns" else ""
        line = f"server 127.0.0.1:{server.port} weight={weight} max_fails=0{most};"
        lines.append(f"    {line}")
    kept = "keepalive_requests 1000000000; keepalive_timeout 120s;"
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(
        [
            *(["user root;"] if os.geteuid() == 0 else []),
            "daemon off; worker_processes 1; worker_rlimit_nofile 16384;",
            f"pid {folder}/nginx.pid; error_log {folder}/nginx.log crit;",
            "events { worker_connections 8192; }",
            "http {",
            "  access_log off;",
            *(f"  {place}_temp_path {folder}/{place};" for place in places),
            "  upstream providers {",
            "    zone providers 256k;",
            "    least_conn;",
            *lines,
            f"    keepalive {2 * scale.connections}; {kept}",
            "  }",
            "  server {",
            f"    listen 127.0.0.1:{port} backlog=4096;",
            f"    {kept}",
            "    location / {",
            "      proxy_pass http://providers;",
            '      proxy_http_version 1.1; proxy_set_header Connection "";',
            f"      proxy_read_timeout {scale.timeout_seconds:g}s;",
            f"      proxy_connect_timeout {scale.timeout_seconds:g}s;",
            "    }",
            "  }",
            "}",
            "",
        ]
    )
