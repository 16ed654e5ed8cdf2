"""A lock for which namespaces take turns."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from maitred.node.namespace_turns import NamespaceTurns
from tests.node.in_process import in_a_loop


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_a_loop
async def test_a_namespace_that_floods_costs_the_others_one_turn() -> None:
    turns, order = NamespaceTurns(), []
    gate = asyncio.Event()

    async def take(namespace: str) -> None:
        async with turns.turn(namespace):
            await gate.wait()
            order.append(namespace)

    tasks = [asyncio.create_task(take("evil")) for _ in range(100)]
    await _settled()
    tasks += [asyncio.create_task(take(name)) for name in ("shop", "bank", "shop")]
    await _settled()
    gate.set()
    await asyncio.gather(*tasks)
    assert order[:7] == ["evil", "evil", "shop", "bank", "evil", "shop", "evil"]
    assert order.count("evil") == 100


@in_a_loop
async def test_only_one_has_the_turn_and_whoever_leaves_passes_it_on() -> None:
    turns = NamespaceTurns()
    inside = 0

    async def take(number: int) -> None:
        nonlocal inside
        async with turns.turn(f"n{number % 3}"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            if number % 5 == 0:
                raise ValueError(number)

    tasks = [asyncio.create_task(take(number)) for number in range(60)]
    await asyncio.sleep(0)
    for number in range(1, 60, 4):
        tasks[number].cancel()
        await asyncio.sleep(0)
    for task in tasks:
        with suppress(asyncio.CancelledError, ValueError):
            await task
    assert not turns._busy
    assert not turns._waiting


@in_a_loop
async def test_one_that_is_called_and_cancelled_at_once_passes_the_turn_on() -> None:
    turns = NamespaceTurns()
    first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def take(done: asyncio.Event) -> None:
        async with turns.turn("n"):
            await done.wait()

    tasks = [asyncio.create_task(take(done)) for done in (first, second, third)]
    await _settled()
    first.set()
    while not tasks[0].done():  # the second is called in the same turn of the loop  # noqa: ASYNC110
        await asyncio.sleep(0)
    tasks[1].cancel()
    third.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not turns._busy
