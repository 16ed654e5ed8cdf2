"""`maitred worker`: runs the handlers of an app until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from maitred.cli.worker_options import EPILOG, node_option, serve, worker_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.app.app import App
    from maitred.app.handler import Handler


@click.command(epilog=EPILOG)
@click.argument("target", metavar="MODULE:APP")
@click.option("--slots", metavar="N", help="Most tasks and queries at a time.  [default: 32]")
@click.option("--threads", metavar="N", help="For plain functions.  [default: as many as slots]")
@click.option(
    "--limit",
    metavar="HOW",
    help="How it limits what runs at a time: measured, knee or slots.  [default: measured]",
)
@node_option("the app's, else the variable MAITRED_URL, else this machine's")
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Only this; may be repeated."
)
@worker_options
def worker(target: str, queues: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - as `serve` has them
    """Run the handlers of an app: MODULE:APP, as in shop:app for the app in shop.py.

    Async handlers run on the event loop, plain functions in threads. Ctrl-C or SIGTERM stops it: it
    takes no new tasks or queries, and finishes those that run. A second one ends it at once.
    """

    def found() -> tuple[App, Sequence[Handler[Any, Any, Any]]]:
        from maitred.worker.app_loader import handlers_of, load

        app = load(target)
        return app, handlers_of(app, queues)

    serve(found, **options)
