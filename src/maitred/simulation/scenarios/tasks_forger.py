"""A worker that lies: it ends, gives back and claims attempts that it was never given.

It knows every task that was acknowledged and the session of every other worker. Now and then it
makes an honest offer, so that it has proofs of its own; it shows them for other tasks, other
attempts and under other sessions, and then gives its tasks back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from msgspec import msgpack

from maitred.errors import MaitredError
from maitred.matching.proofs import PROOF_BYTES
from maitred.protocol.tasks import (
    DONE,
    RETURNED,
    STOPPED,
    End,
    Finish,
    Heartbeat,
    Offer,
)
from maitred.routing.names import TASKS
from maitred.simulation.scenarios.tasks_people import NAMESPACE, QUEUE, Person

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import Finished, Given, Heard, Offered
    from maitred.simulation.hosts import Host
    from maitred.simulation.scenarios.tasks_record import TasksRecord

SESSION: Final = b"the forger's own"
FORGED: Final = msgpack.encode("forged")
AT_ONCE: Final = 20
"""Ends that are forged with one message, at most."""

PATIENCE_SECONDS: Final = 1.0


class Forger(Person):
    """Says of many tasks that they are done, and has run none."""

    expects_refusals = True
    """Whether an answer that believes it is a violation by itself."""

    def __init__(
        self, host: Host, node: Host, record: TasksRecord, sessions: Callable[[], Sequence[bytes]]
    ) -> None:
        super().__init__(host, node, record)
        self.refused = 0
        """Forged ends and heartbeats that the node has refused."""
        self._sessions = sessions
        """Sessions of the other workers."""
        self._given: list[Given] = []
        """Tasks that it was given itself, the latest last."""

    async def main(self) -> None:
        """Send forged reports for ever."""
        client = await self.connected(self.app())
        while True:
            await asyncio.sleep(self.random.expovariate(4.0))
            with suppress(MaitredError):
                if self.random.random() < 0.2:
                    await self._offer(client)
                else:
                    await self._forge(client)

    async def _forge(self, client: AsyncClient) -> None:
        random = self.random
        places = [story.place for story in self.record.stories if story.place is not None]
        if not places:
            return
        partition, _ = random.choice(places)
        numbers = [sequence for at, sequence in places if at == partition]
        some = random.sample(numbers, min(len(numbers), AT_ONCE))
        session = random.choice((SESSION, *self._sessions()))
        claims = [self._claim(sequence, partition, session) for sequence in some]
        where = (NAMESPACE, QUEUE, TASKS, partition, 0)
        refused = [sequence for sequence, _, _ in claims]
        if random.random() < 0.5:
            ends = [End(*claim, random.randint(DONE, STOPPED), FORGED) for claim in claims]
            finish = Finish(*where, session, ends)
            found = cast("Finished", await client.request(finish, PATIENCE_SECONDS)).refused
        else:
            beat = Heartbeat(*where, session, "forger", claims)
            found = cast("Heard", await client.request(beat, PATIENCE_SECONDS)).lost
        self.refused += len(found)
        if self.expects_refusals and found != refused:
            raise self.record.violation(
                self.record.stories[0], f"(or another) was believed: {refused} but {found}"
            )

    def _claim(self, sequence: int, partition: int, session: bytes) -> tuple[int, int, bytes]:
        """Return a claim that a shard must refuse: noise, or a proof for something else."""
        random = self.random
        attempt = random.randint(1, 3)
        if self._given and random.random() < 0.5:
            mine = random.choice(self._given)
            is_mine = (mine.partition, mine.sequence, mine.attempt) == (
                partition,
                sequence,
                attempt,
            )
            if not (is_mine and session == SESSION):
                return sequence, attempt, mine.proof
        return sequence, attempt, random.randbytes(PROOF_BYTES)

    async def _offer(self, client: AsyncClient) -> None:
        """Be given a task or two, and give them back as an honest worker would."""
        slots = self.random.randint(1, 2)
        where = (NAMESPACE, QUEUE, TASKS, 0, 0)
        offer = Offer(*where, 0, SESSION, "forger", slots)
        offered = cast("Offered", await client.request(offer, PATIENCE_SECONDS))
        self._given = [*self._given[-AT_ONCE:], *offered.tasks]
        for task in offered.tasks:
            at_home = (NAMESPACE, QUEUE, TASKS, task.partition, 0)
            end = End(task.sequence, task.attempt, task.proof, RETURNED)
            await client.request(Finish(*at_home, SESSION, [end]), PATIENCE_SECONDS)
