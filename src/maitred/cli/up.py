"""`maitred up`: starts a node, prints its address, and runs until it is stopped.

The address and the next steps are on standard output, the node's log on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from maitred.cli.output import print_table
from maitred.cli.process_exit import exit_statuses
from maitred.errors import InvalidArgument
from maitred.node.exits import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.cli.up_example import ExamplePool
    from maitred.logs import Logger
    from maitred.node.supervisor import StartedNode
    from maitred.settings import Node

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to try it out, then

_GROUPED = {"announce": "cluster.announce"}
"""Settings of groups whose options have a shorter name."""

HOW_TO_STOP = (
    "\nCtrl-C stops it when the work in flight is finished; a second Ctrl-C stops it at once."
)

_EPILOG = (
    exit_statuses(MEANINGS)
    + "\n\nSettings that are not given here come from the environment (MAITRED_PORT), else from "
    "the file, else they have their defaults: see `maitred config list`."
)


@click.command(epilog=_EPILOG)
@click.option("--shards", metavar="N", help="Processes of the node.  [default: one a core]")
@click.option("--host", metavar="HOST", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="The port; 0 finds a free one.  [default: 4747]")
@click.option("--data", metavar="DIR", help="The node's directory.  [default: maitred-data]")
@click.option(
    "--store",
    metavar="URL",
    help="Where tasks are kept: postgresql://...; with a password better in the variable "
    "MAITRED_STORE.  [default: files in the data directory]",
)
@click.option(
    "--announce",
    metavar="HOST",
    help="Where clients and other nodes of a cluster reach this one.  [default: the host]",
)
@click.option("--config", "file", metavar="FILE", help="A TOML file with settings.")
@click.option("--drain-seconds", metavar="S", help="How long to finish work.  [default: 10]")
@click.option("--users-file", metavar="FILE", help="Users, in a file that is read when it changes.")
@click.option(
    "--public-without-auth",
    is_flag=True,
    default=None,
    help="Listen on a public address without users: every caller may do anything.",
)
@click.option("--log-format", metavar="FORMAT", help="auto, human or json.  [default: auto]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, ...  [default: info]")
@click.option(
    "--accept-loss",
    "accepted",
    metavar="FILE",
    multiple=True,
    help="Go on without what is lost with this file of the data directory; it is recorded.",
)
@click.option("--set", "others", metavar="NAME=VALUE", multiple=True, help="Any other setting.")
@click.option("--example", is_flag=True, help="Start workers as well that serve quotes and trades.")
@click.option("--json", "as_json", is_flag=True, help="Say where the node is as a line of JSON.")
def up(
    file: str | None,
    *,
    others: tuple[str, ...],
    accepted: tuple[str, ...],
    example: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Start a node, and stay until it is stopped.

    Ctrl-C or SIGTERM stops it: no new work is taken, what is under way is finished. A second one
    ends it at once.
    """
    import asyncio

    from maitred.config import cores, load
    from maitred.logs import logger
    from maitred.node.node_reload import SettingsSource
    from maitred.node.supervisor import Supervisor

    def read() -> Node:
        return load(file, os.environ, flags(options, others))

    # The files of this process and its shards are for their owner alone, sockets and logs as well.
    os.umask(os.umask(0o077) | 0o077)
    settings = read()
    _check_announced(settings)
    log = logger(settings.log)
    pool = _example(settings, log) if example else None

    def announce(running: StartedNode) -> None:
        _announce(running, settings, log, pool, as_json=as_json)

    async def run() -> int:
        shards = settings.shards or cores()
        source = SettingsSource(read, file)
        return await Supervisor(settings, shards, log, pool, source, accepted).run(announce)

    sys.exit(asyncio.run(run()))


def flags(options: Mapping[str, object], others: tuple[str, ...]) -> dict[str, object]:
    """Return the options of the command line by the names of their settings."""
    given = {
        _GROUPED.get(name, name.replace("log_", "log.")): value for name, value in options.items()
    }
    for other in others:
        name, equals, value = other.partition("=")
        if not equals:
            raise InvalidArgument(
                f"--set {other!r} is no NAME=VALUE.", remedy="Write --set limits.connections=500."
            )
        if given.get(name) is not None:
            raise InvalidArgument(f"{name} is given twice.", remedy="Keep one of them.")
        given[name] = value
    return given


def _check_announced(settings: Node) -> None:
    """Raise `CannotStart` if the announced host has no address: no other node could connect. Only
    the start looks it up, since a resolver can take its time."""
    from maitred.node.held_ports import resolve
    from maitred.security.announced_address import announced

    if settings.store is not None and settings.cluster.enabled:
        resolve(announced(settings, settings.port)[0])


def _example(settings: Node, log: Logger) -> ExamplePool:
    from maitred.cli.up_example import ExamplePool, check

    check(settings)
    return ExamplePool(lambda running: _url(running, settings), log)


def _announce(
    running: StartedNode, settings: Node, log: Logger, pool: ExamplePool | None, *, as_json: bool
) -> None:
    try:
        if as_json:
            workers = {"workers": pool.pids} if pool else {}
            click.echo(json.dumps(_facts(running, settings) | workers))
        else:
            _print(running, settings, with_example=pool is not None)
        if sys.stdout is not None:  # it was closed before we began
            sys.stdout.flush()
    except OSError as problem:
        # The reader has gone, or the disk is full: no reason to stop serving. Python must not try
        # to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        log.warning("standard output cannot be written", reason=problem.strerror)


def _url(running: StartedNode, settings: Node) -> str:
    from maitred.security.announced_address import announced

    # The certificate of a node in a cluster is for the host that it announces.
    host, _ = announced(settings, running.port)
    host = _EVERYWHERE.get(host, host)
    scheme = "maitreds" if settings.tls else "maitred"
    return f"{scheme}://{_bracketed(host)}:{running.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _http(running: StartedNode, settings: Node) -> str | None:
    if not running.http_port:
        return None
    host = _EVERYWHERE.get(running.http_host, running.http_host)
    scheme = "https" if settings.tls else "http"
    return f"{scheme}://{_bracketed(host)}:{running.http_port}"


def _console(running: StartedNode, settings: Node) -> str | None:
    http_api = _http(running, settings)
    return f"{http_api}/console" if http_api is not None and settings.gateway.console else None


def _monitor(running: StartedNode) -> str | None:
    if not running.monitor_port:
        return None
    host = _EVERYWHERE.get(running.monitor_host, running.monitor_host)
    return f"http://{_bracketed(host)}:{running.monitor_port}"


def _facts(running: StartedNode, settings: Node) -> dict[str, object]:
    return {
        "url": _url(running, settings),
        "node": str(running.node),
        "pid": os.getpid(),
        "host": running.host,
        "port": running.port,
        "source_port": running.source_port or None,
        "http": _http(running, settings),
        "console": _console(running, settings),
        "gateway_pid": running.gateway_pid or None,
        "monitor": _monitor(running),
        "shards": [
            {"shard": number, "pid": pid, "port": port}
            for number, (pid, port) in enumerate(zip(running.pids, running.own_ports, strict=True))
        ],
        "data": str(running.data),
        "auth": settings.authenticates,
        "tls": settings.tls is not None,
        "cluster": _cluster(running),
    }


def _cluster(running: StartedNode) -> dict[str, object] | None:
    view = running.view
    if view is None:
        return None
    others = [member.name for member in view.members if member.node != str(running.node)]
    return {"name": view.cluster, "version": view.version, "others": others}


def _joined(running: StartedNode) -> str:
    view = running.view
    if view is None:
        return ""
    others = [member.name for member in view.members if member.node != str(running.node)]
    if not others:
        return f"{view.cluster}: this is its first node; others join with the same --store"
    return f"{view.cluster}: joined {', '.join(others)}"


def _print(running: StartedNode, settings: Node, *, with_example: bool) -> None:
    host = _bracketed(running.host)
    count = len(running.pids)
    click.secho(
        f"maitred is up: {count} {'shard' if count == 1 else 'shards'} on {host}:{running.port}",
        bold=True,
    )
    click.echo()
    print_table(
        [
            {"shard": number, "pid": pid, "own address": f"{host}:{port}"}
            for number, (pid, port) in enumerate(zip(running.pids, running.own_ports, strict=True))
        ]
    )
    click.echo()
    click.echo(f"data     {running.data}")
    click.echo(f"node     {running.node}")
    if running.view is not None:
        click.echo(f"cluster  {_joined(running)}")
    users = "users must log in" if settings.authenticates else "none: every caller may do anything"
    click.echo(f"auth     {users}")
    click.echo(f"TLS      {'on' if settings.tls else 'off'}")
    none = "the gateway does not reach the node: see the log" if running.gateway_pid else "off"
    http_api = _http(running, settings)
    click.echo(f"http     {http_api or none}")
    click.echo(f"console  {_console(running, settings) or 'off'}")
    click.echo(f"monitor  {_monitor(running) or 'off'}")
    if running.source_port:
        click.echo(f"drivers  {host}:{running.source_port} for ScyllaDB's, by their source port")
    _print_next_steps(_url(running, settings), http_api, settings, with_example=with_example)


def _print_next_steps(
    url: str, http_api: str | None, settings: Node, *, with_example: bool
) -> None:
    from maitred.settings import PORT

    is_default = url == f"maitred://127.0.0.1:{PORT}"
    option = "" if is_default else f" --url {url}"
    if settings.authenticates:
        url = url.replace("://", "://USER:SECRET@")
        option = f" --url {url}"
    command = "maitred" if shutil.which("maitred") else sys.argv[0]
    if with_example:
        from maitred.cli.up_example import print_next_steps

        print_next_steps(url, option, command, http_api)
        click.echo(HOW_TO_STOP)
        return
    click.echo("\nTry, in another terminal:\n")
    click.echo(f"  {command} status{option}")
    click.echo(f"  {command} ping{option}")
    click.echo(f"  {command} admin queue list{option}")
    if settings.store is not None and settings.cluster.enabled:
        click.echo(f"  {command} admin cluster{option}")
    click.echo("\nor, in Python, a task that waits for a worker (README.md shows one):\n")
    click.echo("  from maitred import App")
    click.echo(f'  app = App("shop", node="{url}")')
    click.echo('  @app.handler("greetings")')
    click.echo("  def greet(name: str) -> str: ...")
    click.echo('  print(greet.sync.enqueue("world"))')
    if settings.tls:
        click.echo(
            "\nA certificate of your own authority needs ?ca=FILE at the end of the address,"
        )
        click.echo("and clients that have to show one &cert=FILE&key=FILE.")
    click.echo(HOW_TO_STOP)
