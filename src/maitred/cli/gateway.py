"""`maitred gateway`: the HTTP API of a node, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from maitred.cli.address import run, url_option
from maitred.cli.process_exit import exit_statuses, forced
from maitred.node.exits import BAD_INPUT, CANNOT_START, CUT_OFF, FINISHED

if TYPE_CHECKING:
    from maitred.settings import Node

MEANINGS: Final = (
    (str(FINISHED), "stopped, and everything under way was finished"),
    (str(CANNOT_START), "could not start: the port is in use, or the node refuses the login"),
    (str(BAD_INPUT), "bad input: an option or a setting that cannot be used"),
    (str(CUT_OFF), "stopped, and some requests were cut off when drain_seconds were over"),
    ("130, 143", "forced by a second signal (SIGINT, SIGTERM)"),
)

_EPILOG = (
    exit_statuses(MEANINGS)
    + "\n\nThe settings are a node's, as for `maitred up`: the group `gateway`, `users`, "
    "`users_file`, `tls`, `log`, `drain_seconds`. Without users, every caller may do "
    "what the user of the URL may."
)


@click.command(epilog=_EPILOG)
@url_option
@click.option("--host", metavar="HOST", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="The port; 0 finds a free one.  [default: 4780]")
@click.option("--config", "file", metavar="FILE", help="A TOML file with settings.")
@click.option("--set", "others", metavar="NAME=VALUE", multiple=True, help="Any other setting.")
@click.option("--json", "as_json", is_flag=True, help="Say where it is as a line of JSON.")
def gateway(
    url: str,
    host: str | None,
    port: str | None,
    file: str | None,
    *,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve the HTTP API of a node until stopped.

    `maitred up` opens one already; this is for more of them, or for another machine. Ctrl-C or
    SIGTERM stops it: no new requests are taken, what is under way is finished. A second one ends it
    at once.
    """
    from maitred.cli.up import HOW_TO_STOP, flags
    from maitred.client.address import parse_address
    from maitred.config import load
    from maitred.gateway.process import stand_alone
    from maitred.logs import logger
    from maitred.node.node_reload import SettingsSource
    from maitred.telemetry.start import check

    parse_address(url)
    given = flags({"gateway.host": host, "gateway.port": port}, others)

    def read() -> Node:
        return load(file, os.environ, given)

    settings = read()
    check(settings.telemetry)
    log = logger(settings.log)

    def announce(address: str) -> None:
        if as_json:
            click.echo(json.dumps({"http": address, "pid": os.getpid()}))
        else:
            click.echo(f"http     {address}")
            click.echo(f"console  {f'{address}/console' if settings.gateway.console else 'off'}")
            click.echo(HOW_TO_STOP)
        sys.stdout.flush()

    source = SettingsSource(read, file)
    finished = run(stand_alone(url, settings, log, announce, forced, source))
    sys.exit(FINISHED if finished else CUT_OFF)
