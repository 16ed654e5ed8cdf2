"""docs/architecture.md walks with one task and one query through the code: each function that the
tables name is called in a real run, the frames are those on the wire, and the counts are right.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from maitred import App
from maitred.protocol.frames import ANSWER, Frame, FrameDecoder, Opcode
from maitred.settings import Queue, WorkerSettings
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog, in_a_loop, node, until
from tests.node.raw import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import FrameType

    from maitred.app.handler import Handler

    Thumbnail = Handler[[str, int], str, Coroutine[Any, Any, str]]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "maitred"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MARKS = ("frame", "future", "codec")
CODECS = [
    ("app/signature.py", "Signature.write"),
    ("app/signature.py", "Signature.read"),
    ("worker/outcomes.py", "returned"),
    ("app/signature.py", "Signature.read_result"),
]
HOLD_SECONDS = 600.0
"""No write of a held task is due while the test runs, however slow the machine is."""


class Walk(NamedTuple):
    """What the page says of a walk."""

    functions: set[tuple[str, str]]
    """Files and qualified names."""
    steps: str
    counts: str

    @property
    def frames(self) -> list[str]:
        return sorted(re.findall(r"frame \d+: ([A-Z]+(?: answer)?)", self.steps))


def walk(title: str) -> Walk:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    functions = set()
    steps = []
    for step, names, file in re.findall(
        r"^\| \d+ \| (.*?) \| (.*?) \| `(.*?)` \|", section, re.MULTILINE
    ):
        steps.append(step)
        kind = ""
        for name in re.findall(r"`(.*?)`", names):
            kind = name.rpartition(".")[0] or kind
            functions.add((file, name if "." in name or not kind else f"{kind}.{name}"))
    counts = section.partition("**Counts of the table**: ")[2].partition(".\n")[0]
    return Walk(functions, "\n".join(steps), counts)


TASK, QUERY = walk("The walk of a task"), walk("The walk of a query")


def test_the_counts_are_those_of_the_tables() -> None:
    for one in (TASK, QUERY):
        frames, futures, codecs = (
            len(set(re.findall(rf"\b{mark} (\d+)", one.steps))) for mark in MARKS
        )
        assert one.counts == (
            f"{len(one.functions)} functions in {len({file for file, _ in one.functions})} files, "
            f"{frames} frames, {futures} futures, {codecs} payload codecs"
        )


def test_files_that_the_page_names_exist() -> None:
    folders = (SOURCE, ROOT, SOURCE / "matching", SOURCE / "node")
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(named) > 100
    assert [one for one in named if not any((here / one).exists() for here in folders)] == []


class Trace:
    """Which functions of ours are called, and which frames arrive."""

    def __init__(self, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Of frames, those of the walk: workers also attend, and gateways watch."""
        self.calls: Counter[tuple[str, str]] = Counter()
        self.frames: list[str] = []
        self._wanted = wanted
        self._on = False
        alone, take = FrameDecoder.alone, FrameDecoder.take

        def noted_alone(decoder: FrameDecoder, data: bytes) -> Frame | None:
            frame = alone(decoder, data)
            self._note([] if frame is None else [frame])
            return frame

        def noted_take(decoder: FrameDecoder, most: int) -> list[Frame]:
            frames = take(decoder, most)
            self._note(frames)
            return frames

        monkeypatch.setattr(FrameDecoder, "alone", noted_alone)
        monkeypatch.setattr(FrameDecoder, "take", noted_take)

    def _note(self, frames: list[Frame]) -> None:
        for _, _, opcode, _ in frames if self._on else ():
            own = opcode % ANSWER
            name = Opcode(own).name + (" answer" if opcode != own else "")
            if name in self._wanted:
                self.frames.append(name)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            file = str(Path(code.co_filename).relative_to(SOURCE))
            self.calls[file, code.co_qualname.partition(".<locals>")[0]] += 1

    def __enter__(self) -> None:
        self._on = True
        sys.setprofile(self._called)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._on = False


async def enqueue(handler: Thumbnail) -> str:
    return await (await handler.enqueue("a", 1)).result(timeout=PATIENCE_SECONDS)


async def query(handler: Thumbnail) -> str:
    return await handler.query("a", 1)


@pytest.mark.parametrize(
    ("go", "expected"), [(enqueue, TASK), (query, QUERY)], ids=["task", "query"]
)
@in_a_loop
async def test_a_real_run_takes_the_steps_of_the_page(
    go: Callable[[Thumbnail], Awaitable[str]],
    expected: Walk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace(expected.frames, monkeypatch)
    async with node(tmp_path, queues={"*": Queue(hold_seconds=HOLD_SECONDS)}) as running:
        running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        app = App("shop", node=f"maitred://127.0.0.1:{running.port}")

        @app.handler("thumbnails")
        async def thumbnail(url: str, size: int) -> str:
            return f"{url} {size}"

        async with app:
            worker = Worker(
                (await app.session()).client,
                list(app.handlers.values()),
                WorkerSettings(warm_seconds=0.0),
                "w",
                Surroundings.real(),
                RecordedLog(),
            )
            working = asyncio.create_task(worker.run())
            # The first time opens connections, loads the partition and asks for signatures.
            await until(lambda: bool(worker._served[0].offers))
            assert await go(thumbnail) == "a 1"
            await until(lambda: worker.statistics.busy + worker._completions.unanswered == 0)
            await until(lambda: len(worker._served[0].offers) == 1)
            with trace:
                assert await go(thumbnail) == "a 1"
                await until(lambda: len(trace.frames) >= len(expected.frames))
            worker.stop()
            await working
    assert expected.functions - set(trace.calls) == set()
    assert sorted(trace.frames) == expected.frames
    assert [trace.calls[codec] for codec in CODECS] == [1] * len(CODECS)
