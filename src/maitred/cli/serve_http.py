"""`maitred serve-http`: a worker before an HTTP server that knows nothing of maitred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from maitred.cli.worker_options import EPILOG, fitted, node_option, serve, worker_options
from maitred.settings import Upstream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.app.app import App
    from maitred.app.handler import Handler

SLOTS: Final = "256"
"""More than most servers can do at a time; how many of them are used is found by trying."""

DEFAULT_NAMESPACE: Final = "default"


@click.command("serve-http", epilog=EPILOG)
@click.argument("queue", metavar="[NAMESPACE/]QUEUE")
@click.option("--upstream", metavar="URL", required=True, help="The server: http://HOST:PORT.")
@click.option(
    "--slots", metavar="N", help=f"The most that it may get at a time.  [default: {SLOTS}]"
)
@node_option("the variable MAITRED_URL, else this machine's")
@click.option("--timeout-seconds", metavar="S", help="For one answer.  [default: 60]")
@click.option(
    "--limit",
    metavar="HOW",
    help="How it knows what the server can take: knee, or slots.  [default: knee]",
)
@worker_options
def serve_http(
    queue: str,
    upstream: str,
    slots: str | None,
    limit: str | None,
    timeout_seconds: str | None,
    **options: Any,  # noqa: ANN401 - as `serve` has them
) -> None:
    """Pass the queries of a queue on to an HTTP server that knows nothing of maitred.

    Whatever a query's arguments are is posted to the server as JSON, and its JSON is the result;
    {"method", "path", "headers", "body"} is a request of any kind, answered with {"status",
    "headers", "body"}. How many the server gets at a time is found by trying: as many as bring more
    done. Ctrl-C or SIGTERM stops it, as with `maitred worker`.
    """
    from maitred.worker.upstream import parse_upstream

    place = parse_upstream(upstream)
    asking = fitted(Upstream, {"timeout_seconds": timeout_seconds})

    def found() -> tuple[App, Sequence[Handler[Any, Any, Any]]]:
        from maitred.app.app import App
        from maitred.worker.upstream_handler import UpstreamHandler

        namespace, slash, short = queue.partition("/")
        if not slash:
            namespace, short = DEFAULT_NAMESPACE, queue
        app = App(namespace)
        return app, [UpstreamHandler(place, asking).serve(app, short)]

    serve(found, slots=slots or SLOTS, limit=limit or "knee", **options)
