"""Commits as fast as it can and says after each one what is safe, until it is killed.

python -m tests.store.committer sqlite <directory>
python -m tests.store.committer postgres <location>
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from maitred.matching.records import Changes
from tests.store.engines import Postgres, Sqlite
from tests.store.samples import KEY, OTHER, acquire, segment


async def main(kind: str, where: str) -> None:
    store = await (Sqlite(Path(where)) if kind == "sqlite" else Postgres(where)).open()
    ranges = {key: (await acquire(store, key)).range_id for key in (KEY, OTHER)}
    for n in itertools.count(1):
        made = segment(n * 10, n * 10 + 9, body=b"body of %d" % n * 100)
        await store.commit(
            [Changes(key, range_id, n, segments=[made]) for key, range_id in ranges.items()]
        )
        print(n, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
