"""Uneven workers: their gateways follow what each of them can really do.

Two workers have 64 slots each, but what they stand before is not the same: one can run two queries
at a time, the other sixteen. Nobody configures that. Each worker measures how many of its queries
are served and how many wait inside of it, and says so with every answer (docs/capacity.md).
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import maitred
from maitred import App
from maitred.errors import Overloaded

app = App("desk")
name, at_a_time = os.environ.get("DESK", "small"), int(os.environ.get("AT_A_TIME", "2"))
places = asyncio.Semaphore(at_a_time)


@app.handler("score")
async def score(number: int) -> tuple[str, int]:
    """Scored by a machine that has room for a few at a time."""
    with maitred.waiting():  # what waits here is not being served, and the worker counts it
        await places.acquire()
    try:
        await asyncio.sleep(0.02)
        return name, number
    finally:
        places.release()


async def ask() -> None:
    by: Counter[str] = Counter()
    async with app:
        # As many at a time as the two can run, and some more that wait for their turn.
        turns = asyncio.Semaphore(24)

        async def one(number: int) -> None:
            async with turns:
                who, same = await score.query(number)
                assert same == number  # noqa: S101
                by[who] += 1

        begun = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(1_000)))
        print(f"1,000 queries, 24 at a time, in {time.monotonic() - begun:.1f} s:")
        for desk, many in DESKS.items():
            print(f"  {desk}: runs {many} at a time, answered {by[desk]}")

        # Far too many at once: those that would wait too long are told so, and when to come back.
        hasty = score.options(do_not_queue=True)
        outcomes = await asyncio.gather(
            *(hasty.query(number) for number in range(500)), return_exceptions=True
        )
        refused = [one for one in outcomes if isinstance(one, Overloaded)]
        by = Counter(one[0] for one in outcomes if isinstance(one, tuple))
        print("500 queries at the same moment, which do not want to wait:")
        for desk in DESKS:
            print(f"  {desk}: answered {by[desk]}")
        pauses = [one.retry_after or 0.0 for one in refused]
        soonest, latest = min(pauses, default=0.0), max(pauses, default=0.0)
        print(f"  refused {len(refused)}, to come back in {soonest:.2f} to {latest:.2f} s")
        other = len(outcomes) - by.total() - len(refused)
        print(f"  anything else: {other}")


DESKS = {"small": 2, "large": 16}
MAITRED = [sys.executable, "-m", "maitred"]
SETTINGS = '[queues."desk/score".queries]\npolicy = "adaptive"\n'


def main() -> None:
    with tempfile.TemporaryDirectory() as data, contextlib.ExitStack() as processes:
        settings = Path(data) / "maitred.toml"
        settings.write_text(SETTINGS)
        up = [*MAITRED, "up", "--json", "--shards", "1", "--port", "0", "--config", str(settings)]
        node = processes.enter_context(
            subprocess.Popen(  # noqa: S603 - it is our own command
                [*up, "--data", f"{data}/data"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        processes.callback(node.terminate)
        assert node.stdout  # noqa: S101
        url = os.environ["MAITRED_URL"] = json.loads(node.stdout.readline())["url"]
        for desk, many in DESKS.items():
            worker = processes.enter_context(
                subprocess.Popen(  # noqa: S603 - it is our own command
                    [*MAITRED, "worker", "uneven:app", "--slots", "64", "--name", desk],
                    cwd=Path(__file__).parent,
                    env={**os.environ, "DESK": desk, "AT_A_TIME": str(many)},
                    stderr=subprocess.DEVNULL,
                )
            )
            processes.callback(worker.terminate)
        wait_for_workers(url, 2)
        asyncio.run(ask())


def wait_for_workers(url: str, many: int) -> None:
    """A queue that nobody ever served is unknown; this one is about to be."""
    command = [*MAITRED, "admin", "worker", "list", "--json", "--url", url]
    while True:
        shown = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own
        if len(json.loads(shown.stdout)["workers"]) == many:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()

# Prints, with other numbers each time:
# ~ 1,000 queries, 24 at a time, in 1.6 s:
# ~   small: runs 2 at a time, answered 127
# ~   large: runs 16 at a time, answered 873
# ~ 500 queries at the same moment, which do not want to wait:
# ~   small: answered 3
# ~   large: answered 19
# ~   refused 478, to come back in 1.00 to 1.00 s
# ~   anything else: 0
