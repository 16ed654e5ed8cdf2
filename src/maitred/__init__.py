"""maitred seats every task and every query at a worker that is free.

    from maitred import App

    app = App("shop")

    @app.handler("thumbnails", retries=3, timeout=30)
    async def thumbnail(url: str, size: int) -> str: ...

    task = await thumbnail.enqueue("https://...", size=128)

See `maitred.app.app`. `connect` is the client below that, for asyncio and ordinary code alike; see
`maitred.client.pending_client`. Errors are in `maitred.errors`; `MaitredError` catches them all.
What is here is loaded when it is first used: importing maitred costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.app.app import App as App
    from maitred.app.attempt import current as current
    from maitred.app.task_views import TaskStatus as TaskStatus
    from maitred.app.task_views import TaskTimeline as TaskTimeline
    from maitred.app.task_views import TimelineEvent as TimelineEvent
    from maitred.app.waiting import offload as offload
    from maitred.app.waiting import waiting as waiting
    from maitred.client.client import AsyncClient as AsyncClient
    from maitred.client.pending_client import PendingClient as connect  # noqa: N813 - it is called as one
    from maitred.client.sync import Client as Client
    from maitred.errors import MaitredError as MaitredError
    from maitred.worker.log_handler import LogHandler as LogHandler

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "Client",
    "LogHandler",
    "MaitredError",
    "TaskStatus",
    "TaskTimeline",
    "TimelineEvent",
    "__version__",
    "connect",
    "current",
    "offload",
    "waiting",
]

_HOMES = {
    "App": ("maitred.app.app", "App"),
    "AsyncClient": ("maitred.client.client", "AsyncClient"),
    "Client": ("maitred.client.sync", "Client"),
    "LogHandler": ("maitred.worker.log_handler", "LogHandler"),
    "MaitredError": ("maitred.errors", "MaitredError"),
    "TimelineEvent": ("maitred.app.task_views", "TimelineEvent"),
    "TaskTimeline": ("maitred.app.task_views", "TaskTimeline"),
    "TaskStatus": ("maitred.app.task_views", "TaskStatus"),
    "connect": ("maitred.client.pending_client", "PendingClient"),
    "current": ("maitred.app.attempt", "current"),
    "offload": ("maitred.app.waiting", "offload"),
    "waiting": ("maitred.app.waiting", "waiting"),
}


if not TYPE_CHECKING:  # a type checker would take it as a promise that every name exists

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module, attribute = _HOMES[name]
        found: object = getattr(import_module(module), attribute)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
