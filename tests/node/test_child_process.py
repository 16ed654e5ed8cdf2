"""The processes of a node, as its supervisor sees them."""

from __future__ import annotations

import asyncio
import threading
from asyncio import unix_events
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maitred.node.child_process import ChildProcess
from maitred.node.control import StartGateway
from maitred.settings import Node
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    import pytest

ENDS_AT_ONCE = "keyword"
"""A module that does nothing when it is run."""


def test_killing_a_process_that_has_just_ended_does_not_take_its_status_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when all shards end by themselves since their store cannot be opened: those that the
    supervisor has not heard of yet are killed, and the loop told of an unknown child process."""
    look = threading.Event()
    watch = unix_events.ThreadedChildWatcher._do_waitpid  # type: ignore[attr-defined]

    def later(*arguments: Any) -> None:  # noqa: ANN401
        look.wait(60)
        watch(*arguments)

    monkeypatch.setattr(unix_events.ThreadedChildWatcher, "_do_waitpid", later)

    async def main() -> None:
        start = StartGateway(Node(), 0, "127.0.0.1:1", "")
        process = await ChildProcess.launch(start, (), ENDS_AT_ONCE)
        stat = Path(f"/proc/{process.pid}/stat")
        await asyncio.to_thread(
            wait_until, lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "it ended"
        )
        process.kill()
        look.set()
        assert (await process.ended()).status == 0

    asyncio.run(main())
    assert "Unknown child process" not in caplog.text
