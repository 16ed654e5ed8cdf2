"""What a killed process was told is safe is there; of what it was doing, all or nothing.

The simulated store has kills of its own: test_simulated.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.engines import Engine, Postgres, Sqlite, awaited, opened
from tests.store.samples import ANY_SIZE, KEY, OTHER, acquire

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("most", [1, 40])
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
@awaited
async def test_what_was_confirmed_before_a_kill_is_there(engine: Engine, most: int) -> None:
    if isinstance(engine, Sqlite):
        arguments = ["sqlite", str(engine.directory)]
    else:
        assert isinstance(engine, Postgres)
        arguments = ["postgres", engine.location]
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        [sys.executable, "-m", "tests.store.committer", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= most:
            process.kill()
            break
    said = [int(line) for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait(30)
    confirmed = said[-1] if said else most
    async with opened(engine) as store:
        found = [await acquire(store, key) for key in (KEY, OTHER)]
        # PostgreSQL may still have done one more after the kill, until it was overtaken.
        assert confirmed <= found[0].backlog <= confirmed + 1
        assert not found[0].clean
        for key, acquired in zip((KEY, OTHER), found, strict=True):
            read = await store.segments(key, 2, 0, 10**9, ANY_SIZE)
            assert [one.segment.first for one in read] == [
                10 * n for n in range(1, acquired.backlog + 1)
            ]
            assert all(
                one.segment.body == b"body of %d" % (one.segment.first // 10) * 100 for one in read
            )
        assert found[0].backlog == found[1].backlog or isinstance(engine, Postgres)
