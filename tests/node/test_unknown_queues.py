"""Asking about a queue that nobody uses is answered, and does not make one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import maitred
from maitred.errors import InvalidArgument, UnknownQueue
from maitred.protocol.tasks import Add, Await, DeadLetters, Describe, Queues, QueuesFound, Revoke
from tests.node.nodes import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.client.client import AsyncClient
    from maitred.protocol.messages import AnyRequest


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_node(shards=2) as node:
        yield node.url


QUESTIONS: list[AnyRequest] = [
    Await("shop", "typo", 1, 0, 0, 4294967296),
    Revoke("shop", "typo", 1, 0, 0, 4294967296),
    Describe("shop", "typo", 1, 0, 0),
    Describe("shop", "typo", 1, 3, 0),
    DeadLetters("shop", "typo", 1, 0, 0, "list"),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.opcode.name)
def test_a_queue_that_nobody_ever_used_is_unknown_and_stays_so(
    url: str, question: AnyRequest
) -> None:
    async def main() -> None:
        async with maitred.connect(url) as client:
            with pytest.raises(UnknownQueue):
                await client.request(question)
            assert ("shop", "typo", 1) not in await _queues(client)

    asyncio.run(main())


def test_who_asks_while_it_is_being_made_gets_an_answer(url: str) -> None:
    async def main() -> None:
        async with maitred.connect(url) as client:
            asked: list[AnyRequest] = [
                Describe("shop", "new", 1, 0, 0),
                Add("shop", "new", 1, 0, 0, 0, [b"x"]),
            ]
            _, added = await asyncio.gather(
                *(client.request(message, 10) for message in asked), return_exceptions=True
            )
            assert not isinstance(added, BaseException)
            assert ("shop", "new", 1) in await _queues(client)

    asyncio.run(main())


def test_numbers_that_no_store_can_count_are_refused(url: str) -> None:
    async def main() -> None:
        async with maitred.connect(url) as client:
            await client.request(Add("shop", "counted", 1, 0, 0, 0, [b"x"]), 10)
            with pytest.raises(InvalidArgument):
                await client.request(
                    DeadLetters("shop", "counted", 1, 0, 0, "list", [2**64 - 1]), 10
                )

    asyncio.run(main())


def test_a_program_that_polls_a_mistyped_queue_hears_each_time_which_is_near(
    url: str,
) -> None:
    async def main() -> None:
        async with maitred.connect(url) as client:
            await client.request(Add("desk", "pictures", 1, 0, 0, 0, [b"x"]), 10)
            for _ in range(30):
                with pytest.raises(UnknownQueue) as caught:
                    await client.request(Describe("desk", "picture", 1, 0, 0), 10)
                assert caught.value.remedy == "Did you mean 'pictures'?"

    asyncio.run(main())


async def _queues(client: AsyncClient) -> list[tuple[str, str, int]]:
    found = await client.request(Queues(0, 0), 10)
    assert isinstance(found, QueuesFound)
    return found.queues
