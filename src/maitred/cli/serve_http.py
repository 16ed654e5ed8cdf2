"""`maitred serve-http`: a worker before an HTTP server that knows nothing of maitred."""

from __future__ import annotations

from typing import Final

import click

from maitred.cli.address import run, token_file_option
from maitred.cli.worker import MEANINGS, NAME_LETTERS, NOWHERE, fitted, forced, leave
from maitred.errors import InvalidArgument
from maitred.node.exits import CUT_OFF, FINISHED
from maitred.settings import Log, Upstream, Worker

SLOTS: Final = "256"
"""More than most servers can do at a time; how many of them are used is found by trying."""

DEFAULT_NAMESPACE: Final = "default"

_EPILOG = "\b\nExit status:\n" + "\n".join(f"  {status:<9} {text}" for status, text in MEANINGS)


@click.command("serve-http", epilog=_EPILOG)
@click.argument("queue", metavar="[NAMESPACE/]QUEUE")
@click.option("--upstream", metavar="URL", required=True, help="The server: http://HOST:PORT.")
@click.option(
    "--slots", metavar="N", help=f"The most that it may get at a time.  [default: {SLOTS}]"
)
@click.option(
    "--url",
    "--node",
    "url",
    metavar="URL",
    help="Which node.  [default: the variable MAITRED_URL, else this machine's]",
)
@click.option("--timeout-seconds", metavar="S", help="For one answer.  [default: 60]")
@click.option(
    "--limit",
    metavar="HOW",
    help="How it knows what the server can take: knee, or slots.  [default: knee]",
)
@token_file_option()
@click.option(
    "--listen",
    "host",
    metavar="HOST|none",
    help="Where gateways reach it; none: only by the node.  [default: 127.0.0.1]",
)
@click.option(
    "--listen-port", "port", metavar="PORT", help="The port for that.  [default: a free one]"
)
@click.option(
    "--certificate",
    metavar="FILE",
    help="What it shows to gateways.  [default: one made at the start, if the node has TLS]",
)
@click.option("--key", metavar="FILE", help="The certificate's key.  [default: in the same file]")
@click.option(
    "--public-without-tls",
    is_flag=True,
    flag_value="true",
    default=None,
    help="Listen on a public address without TLS: arguments and results are readable on the way.",
)
@click.option("--name", metavar="NAME", help="For people to read.  [default: host:pid]")
@click.option("--drain-seconds", metavar="S", help="How long to finish work.  [default: 30]")
@click.option("--log-format", metavar="FORMAT", help="auto, human or json.  [default: auto]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, ...  [default: info]")
def serve_http(
    queue: str,
    upstream: str,
    url: str | None,
    token_file: str | None,
    timeout_seconds: str | None,
    name: str | None,
    log_format: str | None,
    log_level: str | None,
    **options: str | None,
) -> None:
    """Pass the queries of a queue on to an HTTP server that knows nothing of maitred.

    Whatever a query's arguments are is posted to the server as JSON, and its JSON is the result;
    {"method", "path", "headers", "body"} is a request of any kind, answered with {"status",
    "headers", "body"}. How many the server gets at a time is found by trying: as many as bring more
    done. Ctrl-C or SIGTERM stops it, as with `maitred worker`.
    """
    from msgspec.structs import replace

    from maitred.app.app import App
    from maitred.client.address import parse_address
    from maitred.logs import logger
    from maitred.worker.forwarding import Forwarding
    from maitred.worker.process import default_name, work
    from maitred.worker.upstream import parse_upstream

    nowhere = options.get("host") == NOWHERE
    if nowhere:
        del options["host"]
    options["slots"] = options.get("slots") or SLOTS
    options["limit"] = options.get("limit") or "knee"
    settings = fitted(Worker, options)
    if nowhere:
        settings = replace(settings, host=None)
    place = parse_upstream(upstream)
    asking = fitted(Upstream, {"timeout_seconds": timeout_seconds})
    log = logger(fitted(Log, {"format": log_format, "level": log_level}, "log_"))
    if name is not None and not 0 < len(name) <= NAME_LETTERS:
        raise InvalidArgument(f"--name has {len(name)} letters; 1 to {NAME_LETTERS} are allowed.")
    if url is not None:
        parse_address(url)
    namespace, slash, short = queue.partition("/")
    if not slash:
        namespace, short = DEFAULT_NAMESPACE, queue
    app = App(namespace, node=url)
    if token_file is not None:
        app.prefer(token_file=token_file)
    forwarding = Forwarding(place, asking)
    handler = forwarding.serve(app, short)
    finished = run(work(app, [handler], settings, name or default_name(), log, forced))
    leave(FINISHED if finished else CUT_OFF)
