"""Tasks beside their owner: they are kept while they run, and ended together."""

from __future__ import annotations

import asyncio

from maitred.wire.background_tasks import BackgroundTasks


def test_tasks_are_kept_while_they_run_and_cancelled_together() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def waits(name: str, seconds: float) -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.append(name)

        tasks = BackgroundTasks(asyncio.get_running_loop())
        tasks.start(waits("short", 0))
        tasks.start(waits("long", 60))
        assert len(tasks) == 2
        while len(tasks) > 1:  # noqa: ASYNC110 - each turn is one look
            await asyncio.sleep(0)
        assert ended == ["short"]
        await tasks.stop()
        assert ended == ["short", "long"]
        assert len(tasks) == 0
        await tasks.stop()

    asyncio.run(main())
