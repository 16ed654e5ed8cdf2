"""`maitred admin reload`: have a node read its users and certificates again, and hear what came of
it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import connecting
from maitred.cli.admin_names import json_option
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from maitred.protocol.access import NodeReloaded

FAILED = "failed"


@click.command(
    epilog="Exit status: 0 if every process has read everything again, 1 if a part failed. What "
    "failed is as it was before."
)
@url_option
@timeout_option
@json_option
def reload(url: str, timeout: float, *, as_json: bool) -> None:
    """Have a node read its users and certificates again, in all shards and in its gateway.

    A node does so by itself about two seconds after a file has changed. This command is for those
    who want to know that it has: it prints what each process has read, and what it could not use.
    The user needs the permission `admin` for every namespace (*).
    """
    processes = run(_ask(url, timeout)).processes
    rows = [
        {"process": one.process, "part": part.part, "state": part.state, "remark": part.remark}
        for one in processes
        for part in one.parts
    ]
    if as_json:
        print_json({"reloaded": rows})
    else:
        print_table([{name: row[name] for name in ("process", "part", "state")} for row in rows])
        for remark in dict.fromkeys(row["remark"] for row in rows if row["remark"]):
            click.echo(f"\n{remark}", err=True)
    if any(row["state"] == FAILED for row in rows):
        sys.exit(1)


async def _ask(url: str, seconds: float) -> NodeReloaded:
    from maitred.protocol.access import Reload

    async with connecting(url, seconds) as client:
        return cast("NodeReloaded", await client.request(Reload(0, 0)))
