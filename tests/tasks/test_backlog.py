"""A backlog thirty times as large takes no more memory, and the node is as soon ready with it.

The sizes of the issue, ten thousand and ten million, are in `python -m benchmarks.backlog`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.backlog import FULL_RATIO, MEMORY_RATIO, READY_SECONDS, backlog_of

if TYPE_CHECKING:
    from pathlib import Path

SMALL, LARGE = 10_000, 300_000


def test_memory_and_start_do_not_grow_with_the_backlog(tmp_path: Path) -> None:
    few = backlog_of(SMALL, tmp_path / "small")
    many = backlog_of(LARGE, tmp_path / "large")
    assert many.file_bytes > 10 * few.file_bytes, "nothing large was written"
    assert many.filled_bytes < FULL_RATIO * few.filled_bytes
    assert many.ready_bytes < MEMORY_RATIO * few.ready_bytes
    # The start of a process is most of it, and a machine that is busy with other tests is slow.
    assert many.ready_seconds < 2 * few.ready_seconds + READY_SECONDS
