"""maitred: a handler with 64 slots. To be filled in when tasks exist; until then it is absent."""

from __future__ import annotations


class Producer:
    many = "enqueue_many"

    async def open(self, _url: str) -> None:
        raise NotImplementedError("maitred has no tasks yet")

    async def enqueue(self, payload: str) -> None: ...

    async def enqueue_many(self, payloads: list[str]) -> None: ...

    async def close(self) -> None: ...
