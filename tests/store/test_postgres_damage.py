"""A PostgreSQL server that cannot read some rows: the others are read, and written."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from maitred.matching.records import Result
from tests.store.engines import Postgres, awaited, opened
from tests.store.postgres_server import empty_database
from tests.store.samples import ANY_SIZE, KEY, acquire, dead, gone, later, segment, write
from tests.store.test_damaged import BEFORE, damaged

BROKEN = """
CREATE FUNCTION maitred.broken(number bigint, body bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF number = 2 THEN
        RAISE EXCEPTION 'missing chunk number 0 for toast value' USING ERRCODE = 'XX001';
    END IF;
    RETURN body;
END
$$;
ALTER TABLE maitred.segments RENAME TO real_segments;
CREATE VIEW maitred.segments AS
SELECT partition_id, priority, first, last, tasks, maitred.broken(first, body) AS body
FROM maitred.real_segments;
ALTER TABLE maitred.later RENAME TO real_later;
CREATE VIEW maitred.later AS
SELECT partition_id, sequence, due, maitred.broken(sequence, body) AS body FROM maitred.real_later;
ALTER TABLE maitred.dead RENAME TO real_dead;
CREATE VIEW maitred.dead AS
SELECT partition_id, sequence, died_at, reason, maitred.broken(sequence, body) AS body
FROM maitred.real_dead;
"""
"""Whoever reads a body of number 2 meets what a server says of a damaged page."""

BROKEN_RESULTS = """
ALTER TABLE maitred.results RENAME TO real_results;
CREATE VIEW maitred.results AS
SELECT partition_id, sequence, expires_at, maitred.broken(-sequence, body) AS body
FROM maitred.real_results;
"""


@pytest.fixture
def location(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    return empty_database(postgres_server)


async def read(store: Any) -> list[list[tuple[int, bool]]]:  # noqa: ANN401
    """Numbers of all rows, and whether their bodies were read."""
    segments = await store.segments(KEY, 2, -1, 9, ANY_SIZE)
    return [
        [(one.segment.first, bool(one.segment.body)) for one in segments],
        [(one.sequence, bool(one.body)) for one in await store.later(KEY, 9.0, 9, ANY_SIZE)],
        [
            (one.sequence, bool(one.body))
            for one in await store.later_after(KEY, (0.0, 0), 9, ANY_SIZE)
        ],
        [(one.sequence, bool(one.body)) for one in await store.dead(KEY, -1, 9, ANY_SIZE)],
    ]


@awaited
async def test_rows_of_a_history_are_read_but_for_those_that_cannot_be(location: str) -> None:
    async with opened(Postgres(location)) as store:
        await acquire(store, KEY)
        await write(store, KEY, 1, results=[Result(-one, 9.0, b"body") for one in (3, 2, 1)])
        connection = await asyncpg.connect(location)
        await connection.execute(BROKEN + BROKEN_RESULTS)
        await connection.close()
        whole = [(-3, b"body"), (-2, b""), (-1, b"body")]
        assert await store.history(KEY, -9, 9, ANY_SIZE) == whole
        assert await store.history(KEY, -9, 2, ANY_SIZE) == whole[:2]
        assert await store.history(KEY, -3, 9, 1) == whole[1:]


@awaited
async def test_rows_that_the_server_cannot_read_are_told_and_the_others_are_read(
    location: str,
) -> None:
    rows = [segment(number, number) for number in (1, 2, 3)]
    async with opened(Postgres(location)) as store:
        await acquire(store, KEY)
        await write(
            store,
            KEY,
            1,
            segments=rows,
            later=[later(number, 5.0) for number in (1, 2, 3)],
            dead=[dead(number) for number in (1, 2, 3)],
        )
        connection = await asyncpg.connect(location)
        await connection.execute(BROKEN)
        await connection.close()
        assert await read(store) == [[(1, True), (2, False), (3, True)]] * 4
        (around,) = await store.segments_around(KEY, 2)
        assert (around.segment.first, around.segment.body) == (2, b"")
        # What can be read no more cannot be deleted either: it is set aside where it is.
        aside = [damaged("segment", 2, 2), damaged("later", 2, 2, b""), damaged("dead", 2, 2, b"")]
        assert await write(store, KEY, 1, segments_gone=[gone(rows[1])], damaged=aside)
        assert await read(store) == [[(1, True), (3, True)]] * 4
        assert await store.segments_around(KEY, 2) == []
        assert len(await store.damaged(KEY, BEFORE, 9)) == 3
        kept = await store.damaged_one(KEY, "later", 2)
        assert kept is not None
        assert kept.body == b""
        assert await write(store, KEY, 1, damaged_gone=[("segment", 2)])
        assert await read(store) == [[(1, True), (3, True)]] * 4
