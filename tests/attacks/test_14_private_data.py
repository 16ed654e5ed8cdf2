"""Users without `reveal` see no private data, whatever they ask, and users with `read` change
nothing.

The node has a dead letter whose payload, message and traceback hold a secret, a damaged row with
the same body, and a query whose text and error hold it. Users with `read` and users with `operate`
send every request of operators, and no answer may have the secret. Users who may see it do:
otherwise the test would not notice that there is nothing to see.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

import maitred
from maitred.errors import MaitredError
from maitred.matching.records import PartitionKey, Terms
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.inspection import ListTasks, ShowTask, TasksListed
from maitred.protocol.messages import encode
from maitred.protocol.queries import Attend, Queries, QueriesFound, QueryFilter, Watched
from maitred.protocol.tasks import (
    FAILED,
    Add,
    Added,
    DamagedRows,
    DamagedRowsFound,
    DeadLetters,
    DeadLettersFound,
    Describe,
    End,
    Failure,
    Finish,
    Offer,
    Offered,
    PartitionDescription,
    Queues,
    QueuesFound,
)
from maitred.redaction import HIDDEN
from maitred.settings import Queue, User
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.attacks.test_03_permissions import needed, of_operators
from tests.node.in_process import in_a_loop, node, until
from tests.node.querying import report, row, watch
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.messages import AnyRequest

SECONDS = 20.0
SECRET = "4111-1111-1111-1111"  # noqa: S105 - looked for in answers
HASHED = cheaply("s")
USERS = {
    "reader": User(secret=HASHED, permissions={"*": ["read"]}),
    "operator": User(secret=HASHED, permissions={"*": ["operate"]}),
    "auditor": User(secret=HASHED, permissions={"n": ["read", "reveal"]}),
    "neighbour": User(secret=HASHED, permissions={"n": ["operate"], "m": ["admin", "reveal"]}),
    "gateway": User(secret=HASHED, permissions={"n": ["query"]}),
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
}
SESSION = b"session........."
PAYLOAD = msgpack.encode([SECRET])
FAILURE = msgpack.encode(Failure("CardError", f"Card {SECRET}", f"line 1: {SECRET}"))


class Secrets:
    """A node with private data, whose queue is at its last shard."""

    def __init__(self, url: str, queue: str, clients: AsyncExitStack) -> None:
        self.queue = queue
        self._url = url
        self._clients = clients

    def at(self, namespace: str = "n") -> tuple[str, str, int, int, int]:
        return namespace, self.queue, 1, 0, 0

    async def client(self, user: str) -> AsyncClient:
        url = f"maitred://{user}:s@{self._url}"
        return await self._clients.enter_async_context(maitred.connect(url, close_seconds=0.1))

    async def report_forever(self) -> None:
        """A gateway of another user that has a query with the secret in its table."""
        gateway = await self.client("gateway")
        mine = row(7)
        mine.query, mine.error = f"select {SECRET}", f"CardError: {SECRET}"
        while True:
            answer = await gateway.request(watch(), SECONDS)
            assert isinstance(answer, Watched)
            for order in answer.orders:
                await gateway.request(report(order.number, [mine]), SECONDS)


@asynccontextmanager
async def secrets(
    directory: Path, shards: int, hidden: tuple[int, ...] | None = ()
) -> AsyncIterator[Secrets]:
    disk = SimulatedDisk(Random(1))
    queues = {"*": Queue(hold_seconds=0.0)}
    async with (
        node(directory, shards=shards, users=USERS, queues=queues) as running,
        AsyncExitStack() as clients,
    ):
        for shard in running.shards:
            shard.keep_tasks(SimulatedStore(disk))
        queue = running.queue_of(shards - 1)
        here = Secrets(f"127.0.0.1:{running.port}", queue, clients)
        boss = await here.client("boss")
        terms = Terms(retries=0, hidden=hidden)
        added = await boss.request(Add(*here.at(), 0, [PAYLOAD] * 2, terms=terms), SECONDS)
        assert isinstance(added, Added)
        offered = await boss.request(Offer(*here.at(), 0, SESSION, "ant", 2), SECONDS)
        assert isinstance(offered, Offered)
        ends = [End(one.sequence, 1, one.proof, FAILED, FAILURE) for one in offered.tasks]
        await boss.request(Finish(*here.at(), SESSION, ends), SECONDS)
        stored = disk.contents._partitions[PartitionKey(*here.at()[:4])]
        await until(lambda: len(stored.dead) == 2)
        broken = stored.dead[added.first + 1]
        damaged = broken.body[:-3] + b"\x00" + broken.body[-2:]  # the end of the notes
        stored.dead[broken.sequence] = broken._replace(body=damaged)
        await boss.request(DeadLetters(*here.at(), "list"), SECONDS)  # sets the broken one aside
        await until(lambda: bool(stored.damaged))
        plain = Attend(*("n", row(7).queue, 1, 0, 0), SESSION, "ant", "127.0.0.1:4000", 8, 2)
        plain.signature = encode_shape(HandlerShape("ask", [("text", "str", True)]))
        await boss.request(plain, SECONDS)  # the texts of its queries are not hidden
        reporting = asyncio.ensure_future(here.report_forever())
        try:
            yield here
        finally:
            reporting.cancel()


async def answer_to(client: AsyncClient, message: AnyRequest) -> tuple[bytes, str]:
    """The bytes of the answer, and the code of the error if there is one instead."""
    try:
        answer = await client.request(message, SECONDS)
    except MaitredError as problem:
        return f"{problem} {problem.remedy}".encode(), problem.code
    return encode(answer), ""


def changes(message: AnyRequest) -> bool:
    """Whether the request changes something."""
    return needed(message).isdisjoint({"read"})


def whole(here: Secrets, first: int) -> list[AnyRequest]:
    """Requests for whatever is private."""
    at = here.at()
    return [
        DeadLetters(*at, "list"),
        DeadLetters(*at, "show", [first]),
        DamagedRows(*at, "list"),
        DamagedRows(*at, "show", [("dead", first + 1)]),
        ListTasks(*at, "dead", reveal=True),
        ShowTask(*at, first, reveal=True),
        Queries(0, 0, "list", QueryFilter(namespace="n")),
        Queries(0, 0, "list", revealed=None, user="gateway"),
    ]


async def first_letter(here: Secrets) -> int:
    found = await (await here.client("boss")).request(DeadLetters(*here.at(), "list"), SECONDS)
    assert isinstance(found, DeadLettersFound)
    (letter,) = found.letters
    return letter.sequence


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_no_answer_has_what_only_some_may_see(tmp_path: Path, shards: int) -> None:
    async with secrets(tmp_path, shards) as here:
        first = await first_letter(here)
        for user in ("reader", "operator", "neighbour"):
            client = await here.client(user)
            for message in whole(here, first):
                answer, code = await answer_to(client, message)
                assert not code, (user, message)
                assert SECRET.encode() not in answer, (user, message)
            for message in of_operators():
                for field, value in (("queue", here.queue), ("sequences", [first])):
                    if hasattr(message, field):
                        setattr(message, field, value)
                if not changes(message):
                    answer, _ = await answer_to(client, message)
                    assert SECRET.encode() not in answer, (user, message)
        for user in ("auditor", "boss"):
            client = await here.client(user)
            seen = [await answer_to(client, message) for message in whole(here, first)]
            assert [SECRET.encode() in answer for answer, _ in seen] == [
                *(True, True),  # the message of the failure; it, and the payload
                *(False, user == "boss"),  # a list has no bodies, and `reveal` is not enough
                *(True, True, True, True),
            ], user
            dead = DeadLetters(*here.at(), "show", [first], reveal=False)
            answer, _ = await answer_to(client, dead)
            assert SECRET.encode() not in answer, "it was not asked for"


@pytest.mark.parametrize("hidden", [(0,), None])
@in_a_loop
async def test_nobody_sees_hidden_arguments(tmp_path: Path, hidden: tuple[int, ...] | None) -> None:
    """None: no handler has said whether it hides any."""
    async with secrets(tmp_path, 1, hidden) as here:
        first = await first_letter(here)
        boss = await here.client("boss")
        found = await boss.request(DeadLetters(*here.at(), "show", [first]), SECONDS)
        assert isinstance(found, DeadLettersFound)
        (letter,) = found.letters
        if hidden:
            assert (msgpack.decode(letter.payload), letter.withheld) == ([HIDDEN], "")
        else:
            assert (letter.payload, letter.withheld) == (b"", "unknown")
        listed = await boss.request(ListTasks(*here.at(), "dead", reveal=True), SECONDS)
        assert isinstance(listed, TasksListed)
        (task,) = listed.tasks
        assert SECRET.encode() not in (task.arguments or b"")
        assert task.sequence == first


@in_a_loop
async def test_what_is_left_still_says_what_happened(tmp_path: Path) -> None:
    async with secrets(tmp_path, 1) as here:
        first = await first_letter(here)
        reader = await here.client("reader")
        dead = await reader.request(DeadLetters(*here.at(), "show", [first]), SECONDS)
        assert isinstance(dead, DeadLettersFound)
        (letter,) = dead.letters
        assert msgpack.decode(letter.failure, type=Failure) == Failure("CardError", "")
        assert (letter.payload, letter.payload_bytes) == (b"", len(PAYLOAD))
        assert letter.withheld == "permission"
        for user, sees in (("auditor", False), ("boss", True)):
            client = await here.client(user)
            rows = await client.request(
                DamagedRows(*here.at(), "show", [("dead", first + 1)]), SECONDS
            )
            assert isinstance(rows, DamagedRowsFound)
            assert (SECRET.encode() in rows.rows[0].body) == sees
        auditor = await here.client("auditor")
        whole = await auditor.request(DeadLetters(*here.at(), "show", [first]), SECONDS)
        assert isinstance(whole, DeadLettersFound)
        assert (whole.letters[0].payload, whole.letters[0].failure) == (PAYLOAD, FAILURE)
        rows = await reader.request(DamagedRows(*here.at(), "show", [("dead", first + 1)]), SECONDS)
        assert isinstance(rows, DamagedRowsFound)
        (damaged,) = rows.rows
        assert damaged.reason
        assert (damaged.body, damaged.body_bytes > len(PAYLOAD)) == (b"", True)
        found = await reader.request(Queries(0, 0, "list"), SECONDS)
        assert isinstance(found, QueriesFound)
        (query,) = found.rows
        assert (query.query, query.error, query.queue) == ("", "CardError", "q")


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_who_reads_changes_nothing(tmp_path: Path, shards: int) -> None:
    async with secrets(tmp_path, shards) as here:
        first = await first_letter(here)
        boss, reader = await here.client("boss"), await here.client("reader")

        async def state() -> tuple[Any, ...]:
            found = await boss.request(Describe(*here.at()), SECONDS)
            assert isinstance(found, PartitionDescription)
            return found.dead, found.damaged_rows, found.backlog, found.controls, found.counts

        before = await state()
        tried = 0
        for message in of_operators():
            if not changes(message):
                continue
            for field, value in (("queue", here.queue), ("sequences", [first])):
                if hasattr(message, field):
                    setattr(message, field, value)
            assert (await answer_to(reader, message))[1] == "permission-denied", message
            tried += 1
        assert tried > 10
        assert await state() == before


@in_a_loop
async def test_queues_of_other_namespaces_are_not_listed(tmp_path: Path) -> None:
    async with secrets(tmp_path, 1) as here:
        boss = await here.client("boss")
        for namespace in ("m", "other"):
            await boss.request(Add(*here.at(namespace), 0, [b"task"]), SECONDS)
        for user, namespaces in (
            ("boss", {"n", "m", "other"}),
            ("reader", {"n", "m", "other"}),
            ("auditor", {"n"}),
            ("neighbour", {"n", "m"}),
        ):
            client = await here.client(user)
            found = await client.request(Queues(0, 0, within=["other"]), SECONDS)
            assert isinstance(found, QueuesFound)
            assert {namespace for namespace, _, _ in found.queues} == namespaces, user
            assert found.quotas.keys() == namespaces
        gateway = await here.client("gateway")
        assert (await answer_to(gateway, Queues(0, 0)))[1] == "permission-denied"
