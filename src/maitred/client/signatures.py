"""Asks the node which arguments the handlers of a queue accept, and refuses all others.

The client asks the root of a queue at most every `FRESH_SECONDS`; all tasks for the queue share the
answer. A refusal rests on an answer that came after the call, since a worker with a new handler may
just have started. Without an answer, the task is added unchecked: the worker decides, as it does in
the end for every task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from maitred.client.shapes import ArgumentCheck, argument_check
from maitred.errors import MaitredError, NoHandlerFits, NoWorker
from maitred.protocol.tasks import Signatures, SignaturesFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.requester import Requester
    from maitred.routing.names import QueueId

ROOT: Final = 0

FRESH_SECONDS: Final = 10.0
"""Seconds for which an answer is used. Within them, tasks for a new handler are checked against the
old ones, and if there was none, not at all."""

ASK_SECONDS: Final = 3.0
"""Seconds for which a task waits for the answer before it is added unchecked. A node that is away
is noticed before. A second was too short for a machine with ten busy processes a core."""

QUEUES_MAX: Final = 1_000
"""Queues whose answers are remembered; the least recently used one is forgotten first."""

CHECKS_MAX: Final = 1_000
"""Decoders that are remembered, over all queues; each takes some kilobytes."""


class KnownSignatures(NamedTuple):
    """The node's answer for one queue."""

    at: float
    announced: frozenset[bytes]
    checks: list[ArgumentCheck]
    """The checks of all handlers; empty if no arguments can be refused."""
    served: bool

    def takes(self, signature: bytes | None) -> bool:
        """Return whether arguments that fit this signature may be added unchecked."""
        return not self.checks or signature in self.announced

    def refusal(self, payloads: Sequence[bytes]) -> NoHandlerFits | None:
        """Return why the first payload that fits no handler does not fit the newest handler."""
        for payload in payloads:
            first = self.checks[0].misfit(payload)
            if first is None:
                continue
            if all(one.misfit(payload) is not None for one in self.checks[1:]):
                return first
        return None


class SignatureLookup:
    """Asks for the signatures of queues, and remembers them, for one client."""

    def __init__(self, client: Requester) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._known: OrderedDict[QueueId, KnownSignatures] = OrderedDict()
        self._checks: OrderedDict[bytes, ArgumentCheck | None] = OrderedDict()
        self._asking: dict[QueueId, asyncio.Task[KnownSignatures]] = {}

    async def check(
        self,
        queue: QueueId,
        payloads: Sequence[bytes],
        signature: bytes | None = None,
        *,
        require_worker: bool = False,
    ) -> float:
        """Raise `NoHandlerFits` if one of these fits no handler of the queue, and `NoWorker` or
        `UnknownQueue` if a worker is required and none served it lately.

        `signature` is that of the handler that has checked the payloads already. Returns the loop's
        time until which arguments of this signature need not be checked again.
        """
        remembered = self._known.get(queue)
        known = await self._ask(queue, FRESH_SECONDS)
        if known.takes(signature):
            refusal = None
        else:
            refusal = known.refusal(payloads)
            if refusal is not None and known is remembered:
                known = await self._ask(queue, 0.0)
                refusal = None if known.takes(signature) else known.refusal(payloads)
        if require_worker and not known.served:
            await self._raise_unserved(queue)
        if refusal is not None:
            others = len(known.checks) - 1
            refusal.remedy = (
                "Correct it, or start a worker whose handler takes it."
                if not others
                else f"So it is with {others} other handlers of the last day. Correct it, or start "
                "a worker whose handler takes it."
            )
            raise refusal
        return known.at + FRESH_SECONDS if known.takes(signature) else -inf

    async def _raise_unserved(self, queue: QueueId) -> None:
        """Ask again before raising: a worker may have come, and the error names similar queues."""
        answer = await self._client.request(Signatures(*queue, ROOT, 0, must_exist=True))
        if cast("SignaturesFound", answer).served_seconds_ago is None:
            raise NoWorker(
                f"No worker has served the queue {queue.namespace}/{queue.queue} in the last day.",
                remedy="Start one, or add the task without require_worker: it waits then.",
            )

    async def _ask(self, queue: QueueId, oldest_seconds: float) -> KnownSignatures:
        known = self._known.get(queue)
        if known is not None and self._loop.time() < known.at + oldest_seconds:
            self._known.move_to_end(queue)
            return known
        asking = self._asking.get(queue)
        if asking is None:
            asking = self._asking[queue] = self._loop.create_task(self._asked(queue))
        return await asyncio.shield(asking)

    async def _asked(self, queue: QueueId) -> KnownSignatures:
        try:
            known = await self._answered(queue)
            self._known[queue] = known
            self._known.move_to_end(queue)
            if len(self._known) > QUEUES_MAX:
                self._known.popitem(last=False)
            return known
        finally:
            del self._asking[queue]

    async def _answered(self, queue: QueueId) -> KnownSignatures:
        message = Signatures(*queue, ROOT, 0)
        try:
            answer = cast("SignaturesFound", await self._client.request(message, ASK_SECONDS))
        except MaitredError:
            # An older node, or one that cannot be reached: adding the task will fail then.
            return KnownSignatures(self._loop.time(), frozenset(), [], served=False)
        checks = [self._check_of(one) for one in answer.signatures]
        understood = [one for one in checks if one is not None]
        return KnownSignatures(
            self._loop.time(),
            frozenset(answer.signatures),
            understood if len(understood) == len(checks) else [],
            served=answer.served_seconds_ago is not None,
        )

    def _check_of(self, announced: bytes) -> ArgumentCheck | None:
        checks = self._checks
        if announced not in checks:
            checks[announced] = argument_check(announced)
            if len(checks) > CHECKS_MAX:
                checks.popitem(last=False)
        return checks[announced]
