"""`maitred serve-http`: a worker in front of an HTTP server that knows nothing of maitred."""

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
"""More than most servers can do at a time; the limit `knee` finds how many are useful."""

DEFAULT_NAMESPACE: Final = "default"


@click.command("serve-http", epilog=EPILOG)
@click.argument("queue", metavar="[NAMESPACE/]QUEUE")
@click.option("--upstream", metavar="URL", required=True, help="The server: http://HOST:PORT.")
@click.option("--slots", metavar="N", help=f"Most requests at a time.  [default: {SLOTS}]")
@node_option("the variable MAITRED_URL, else this machine's")
@click.option("--timeout-seconds", metavar="S", help="Longest time for one answer.  [default: 60]")
@click.option(
    "--limit",
    metavar="HOW",
    help="How it limits requests at a time: knee, or slots.  [default: knee]",
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
    """Forward the queries of a queue to an HTTP server that knows nothing of maitred.

    The arguments of a query are posted to the server as JSON, and its JSON answer is the result;
    {"method", "path", "headers", "body"} is a request of any kind, answered with {"status",
    "headers", "body"}. The worker measures how many requests at a time the server can use: as many
    as raise its throughput. Ctrl-C or SIGTERM stops it, as with `maitred worker`.
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
