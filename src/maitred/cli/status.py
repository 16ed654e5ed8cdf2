"""`maitred status`: how every shard is, and which does not answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from maitred.protocol.messages import ShardStatus

UNREACHABLE = "unreachable"
REFUSED = "refused"
MEBIBYTE = 2**20

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


@click.command(epilog="Exit status: 0 if every shard serves, 1 otherwise.")
@url_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(url: str, timeout: float, *, as_json: bool) -> None:
    """Show how every shard of a node is."""
    entries = run(_ask(url, timeout))
    if as_json:
        print_json(entries)
    else:
        print_table([_row(entry) for entry in entries])
        for entry in entries:
            if "error" in entry:
                click.echo(f"\n{_name(entry)}: {_reason(entry['error'])}")
    if any(entry["state"] != "serving" for entry in entries):
        sys.exit(1)


async def _ask(url: str, seconds: float) -> list[dict[str, Any]]:
    """One entry a shard: its status, or why there is none."""
    from maitred.client.client import Unreachable
    from maitred.client.pending_client import PendingClient

    async with PendingClient(url, timeout_seconds=seconds, connect_seconds=seconds) as client:
        found = await client.statuses()
    return [_why(one) if isinstance(one, Unreachable) else _told(one) for one in found]


def _told(one: ShardStatus) -> dict[str, Any]:
    from msgspec import to_builtins

    entry: dict[str, Any] = to_builtins(one)
    return entry


def _why(one: Any) -> dict[str, Any]:  # noqa: ANN401 - an Unreachable, imported late
    error = {"code": one.error.code, "sentence": one.error.sentence, "remedy": one.error.remedy}
    # A shard that gives no status to this user has been reached very well.
    state = UNREACHABLE if isinstance(one.error, ConnectionError | TimeoutError) else REFUSED
    return {"shard": one.shard, "address": one.address, "state": state, "error": error}


def _name(entry: dict[str, Any]) -> str:
    shard = "" if entry["shard"] is None else f", shard {entry['shard']}"
    return f"{entry['address']}{shard}"


def _reason(error: dict[str, str | None]) -> str:
    said = " ".join(filter(None, (error["sentence"], error["remedy"])))
    return f"{said} [{error['code']}]"


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
    """As a person would say it: the two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
