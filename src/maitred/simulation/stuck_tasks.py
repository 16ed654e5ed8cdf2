"""Describe where tasks wait: the first thing to read after a hang."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.simulation.simulated_task import SimulatedTask

_LISTED_MAX = 20
"""Tasks named in one error; more would hide the first ones."""


def describe_waiting(tasks: Sequence[SimulatedTask]) -> str:
    """Return one line per task: its name, its process, and the place of its innermost await."""
    lines = [
        f"\n  {task.get_name()}"
        + (f" of {task.process.name}" if task.process else "")
        + f" at {_place(task.get_coro())}"
        for task in tasks[:_LISTED_MAX]
    ]
    if len(tasks) > _LISTED_MAX:
        lines.append(f"\n  and {len(tasks) - _LISTED_MAX} more")
    return "".join(lines) or " no task."


def _place(coroutine: Any) -> str:  # noqa: ANN401 - coroutine, generator or any other awaitable
    place = "an unknown place"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            place = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"
        coroutine = getattr(coroutine, "cr_await", None)
    return place
