"""`maitred status`: the state of every shard, including those that do not answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from maitred.cli.address import node_options
from maitred.cli.admin_ask import UNREACHABLE
from maitred.cli.output import json_option, print_json, print_table
from maitred.client.answers import Silent

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.client.client import Unreachable
    from maitred.protocol.messages import ShardStatus

REFUSED = "refused"
MEBIBYTE = 2**20

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


@click.command(epilog="Exit status: 0 if every shard serves, 1 otherwise.")
@node_options
@json_option
def status(node: AskedNode, *, as_json: bool) -> None:
    """Show the state and the load of every shard of a node."""
    from maitred.client.client import Unreachable

    found = node.ask(lambda client: client.statuses())
    entries = [_silent(one) if isinstance(one, Unreachable) else _told(one) for one in found]
    if as_json:
        print_json(entries)
    else:
        print_table([_row(entry) for entry in entries])
        for one in found:
            if isinstance(one, Unreachable):
                shard = "" if one.shard is None else f", shard {one.shard}"
                click.echo(f"\n{one.address}{shard}: {Silent(one.error)}")
    if any(entry["state"] != "serving" for entry in entries):
        sys.exit(1)


def _told(one: ShardStatus) -> dict[str, Any]:
    from msgspec import to_builtins

    entry: dict[str, Any] = to_builtins(one)
    return entry


def _silent(one: Unreachable) -> dict[str, Any]:
    # A shard that refuses this user its status was reached.
    state = UNREACHABLE if isinstance(one.error, ConnectionError | TimeoutError) else REFUSED
    error = Silent(one.error).told()
    return {"shard": one.shard, "address": one.address, "state": state, "error": error}


def _row(entry: dict[str, Any]) -> dict[str, object]:
    memory, uptime = entry.get("memory_bytes"), entry.get("uptime_seconds")
    return {
        "shard": entry["shard"],
        "pid": entry.get("pid"),
        "address": entry["address"],
        "state": entry["state"],
        "load": entry.get("load"),
        "MiB": None if memory is None else round(memory / MEBIBYTE),
        "connections": entry.get("connections"),
        "in flight": entry.get("in_flight"),
        "requests": entry.get("requests"),
        "req/s": entry.get("requests_per_second"),
        "forwarded": entry.get("forwarded"),
        "restarts": entry.get("restarts"),
        "uptime": None if uptime is None else duration(uptime),
    }


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 3 h 12 min."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
