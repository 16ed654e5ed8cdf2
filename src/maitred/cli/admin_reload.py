"""`maitred admin reload`: a node reads its users and certificates again, and reports the result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from maitred.cli.address import node_options
from maitred.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.protocol.access import NodeReloaded

FAILED = "failed"


@click.command(
    short_help="Read users and certificates again.",
    epilog="Exit status: 0 if every process has read everything again, 1 if a part failed. What "
    "failed is as it was before.",
)
@node_options
@json_option
def reload(node: AskedNode, *, as_json: bool) -> None:
    """Have a node read its users and certificates again, in all shards and in its gateway.

    A node does so by itself about two seconds after a file has changed. This command is for
    certainty: it prints what each process has read, and what it could not use.
    The user needs the permission `admin` for every namespace (*).
    """
    from maitred.protocol.access import Reload

    reloaded = cast("NodeReloaded", node.ask(lambda client: client.request(Reload(0, 0))))
    rows = [
        {"process": one.process, "part": part.part, "state": part.state, "remark": part.remark}
        for one in reloaded.processes
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
