"""The app that the workers of a rig serve; its handlers write down each run, and its workers which
ends their nodes have confirmed.

Environment: `CLUSTER_LEDGER` is the ledger's directory, `CLUSTER_QUEUES` the number of queues.
Queue `q3` has tasks, `ask3` has queries.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import maitred
from maitred.worker.completions import CompletionReports
from tests.cluster.ledger import LEDGER_VARIABLE, NAMESPACE, Book

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

QUEUES_VARIABLE = "CLUSTER_QUEUES"
MANY = 1_000
"""Retries, for tasks that are to outlive any number of lost workers and nodes."""

app = maitred.App(NAMESPACE)
_books: dict[int, Book] = {}


def book() -> Book:
    """This process's; a fork has another one."""
    if os.getpid() not in _books:
        _books[os.getpid()] = Book(os.environ[LEDGER_VARIABLE], "worker")
    return _books[os.getpid()]


class NotedReports:
    """Stands between a worker's reports and its client, and writes down each answer: a node answers
    when the ends are on disk or need not be."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - of whichever program runs
        self._client = client

    def request_told(
        self,
        message: Any,  # noqa: ANN401 - a `Finish`
        told: Callable[[Any], None],
        *options: Any,  # noqa: ANN401 - as the client takes them
        **named: Any,  # noqa: ANN401
    ) -> None:
        def noted(answer: Any) -> None:  # noqa: ANN401 - a `Finished` or an error
            if not isinstance(answer, maitred.MaitredError):
                book().note(
                    "confirmed",
                    pid=os.getpid(),
                    partition=f"{message.namespace}/{message.queue}/{message.partition}",
                    ends=[(end.sequence, end.attempt, end.how) for end in message.ends],
                    late=answer.late,
                    refused=answer.refused,
                )
            told(answer)

        self._client.request_told(message, noted, *options, **named)


def note_reports() -> None:
    """Have the workers of this process write down which ends were confirmed, if it is one of a rig:
    tests import this module too, and its forks begin without the variable."""
    original = CompletionReports.__init__

    def with_notes(reports: CompletionReports, *arguments: Any) -> None:  # noqa: ANN401
        original(reports, *arguments)
        if LEDGER_VARIABLE in os.environ:
            reports._client = NotedReports(reports._client)  # type: ignore[assignment]

    CompletionReports.__init__ = with_notes  # type: ignore[method-assign,assignment]


async def work(n: int, seconds: float = 0.0) -> int:
    """Run a task."""
    attempt = maitred.current()
    about = {"n": n, "attempt": attempt.number, "pid": os.getpid(), "task": str(attempt.task_id)}
    book().note("began", **about)
    if seconds:
        await asyncio.sleep(seconds)
    book().note("ended", **about)
    return n


async def answer(n: int, seconds: float = 0.0) -> int:
    """Answer a query."""
    if seconds:
        await asyncio.sleep(seconds)
    return 2 * n


def handlers(count: int) -> tuple[list[Any], list[Any]]:
    """The handlers of tasks, and those of queries, one of each per queue."""
    tasks = [
        app.handler(f"q{number}", retries=MANY, backoff=(0.05, 0.2), retention=600)(work)
        for number in range(count)
    ]
    queries = [app.handler(f"ask{number}")(answer) for number in range(count)]
    return tasks, queries


note_reports()
TASKS_OF, QUERIES_OF = handlers(int(os.environ.get(QUEUES_VARIABLE, "6")))
