"""The processes of one checkout for `--against`: a server, a producer and a worker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.against import Slice
from benchmarks.scraping import scraping
from benchmarks.tasks.lineup import OURS, PEERS
from benchmarks.tasks.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from benchmarks.against import Checkout, Loads

TASKS = 8_000
"""In one slice: a third of a second, long beside the few tasks whose end falls out of it."""

QUICK_TASKS = 500


def start(*, quick: bool) -> Callable[[ExitStack, Checkout], Loads]:
    """How a checkout is started; each load goes from the producer to the handler."""
    tasks = QUICK_TASKS if quick else TASKS
    (peer,) = [peer for peer in PEERS if peer.name == OURS]

    def begin(stack: ExitStack, checkout: Checkout) -> Loads:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        session = Session(
            stack, peer, folder, checkout.search_path, environment=checkout.environment
        )
        session.start_worker()
        session.end_to_end(1)  # the worker is ready, and has its metrics
        stack.enter_context(scraping(checkout, session.served_by))

        def end_to_end(*, each: bool) -> Slice:
            figures = session.end_to_end(tasks, each=each)
            return Slice(tasks, tasks / figures["end to end"], tasks * figures["cpu us"] / 1e6)

        return {
            "tasks, by enqueue_many": lambda: end_to_end(each=False),
            "tasks, 64 calls in flight": lambda: end_to_end(each=True),
        }

    return begin
