"""A client of the shards of a town, for what asks all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from maitred.client.statistics import ShardAnswer, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.protocol.messages import AnyAnswer, AnyRequest
    from tests.node.members import Town, TownShard


class TownClient:
    """Asks the shards of a town; those of `silent` members do not answer."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self.silent: dict[str, MaitredError] = {}

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - as the client has it
    ) -> list[ShardAnswer | Unreachable]:
        found: list[ShardAnswer | Unreachable] = []
        for (member, number), shard in self._town.shards.items():
            name = next(one for one, it in self._town.members.items() if it.id == member)
            problem = self.silent.get(name)
            if problem is not None:
                found.append(Unreachable(address=name, shard=number, error=problem))
                continue
            asked = message(name, number)
            if asked is None:
                continue
            answer = await _answer(shard, asked)
            found.append(ShardAnswer(address=name, shard=number, answer=answer))
        return found

    async def request(
        self,
        message: AnyRequest,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        *,
        node: str | None = None,
    ) -> AnyAnswer:
        assert node is not None
        answer: AnyAnswer = await _answer(self._town.of(node)[0], message)
        return answer

    def watched_nodes(self) -> tuple[str, ...]:
        return ("a",)


async def _answer(shard: TownShard, message: AnyRequest) -> Any:  # noqa: ANN401
    answer: Any = shard.handlers[message.opcode](message)
    return await answer if asyncio.iscoroutine(answer) else answer
