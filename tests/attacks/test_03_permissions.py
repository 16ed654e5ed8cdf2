"""Whoever names a task, a queue or a worker by a number that can be guessed needs the permission.

Every request of the protocol is sent by users who have one permission in the namespace, and every
permission in another one. What a request needs is in its class; the permission of another kind, or
of another namespace, is worth nothing. What shards say to each other is refused to everybody.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, get_args

import pytest
from fuzz.parts import PARTS
from msgspec.structs import fields

from maitred.errors import Draining, MaitredError
from maitred.matching.records import Terms
from maitred.protocol.cluster import DescribeCluster, DrainNode
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.gauge_series import ShowShardSeries, ShowWorkerSeries
from maitred.protocol.inspection import (
    ArgumentFilter,
    ChangeTasks,
    ListTasks,
    ShowTask,
    TaskFilter,
)
from maitred.protocol.messages import REQUEST_DECODERS, REQUESTS, Status, encode
from maitred.protocol.queries import Queries, QueryFilter, Workers
from maitred.protocol.queue_overview import ListQueueStates, ShowSeries
from maitred.protocol.requests import PartitionRequest
from maitred.protocol.tasks import (
    Add,
    Await,
    ControlQueue,
    DamagedRows,
    DeadLetters,
    DeleteQueue,
    Describe,
    End,
    Finish,
    Offer,
    PurgeTasks,
    Queues,
    Resize,
    Revoke,
)
from maitred.protocol.worker_overview import ListWorkers, ShowWorkerTasks
from maitred.settings import Permission, User
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.attacks.test_03_forged_ends import HASHED, SECONDS, A, shop
from tests.node.in_process import in_a_loop, node
from tests.node.raw import error_in

if TYPE_CHECKING:
    from pathlib import Path

    from msgspec import Struct

    from maitred.client.client import AsyncClient
    from maitred.node.deferred_reply import DeferredReply
    from maitred.protocol.messages import AnyRequest

PERMISSIONS: tuple[Permission, ...] = get_args(Permission)
USERS: dict[str, User] = {
    one: User(secret=HASHED, permissions={"n": [one], "m": [*PERMISSIONS]}) for one in PERMISSIONS
}
USERS["root"] = User(secret=HASHED, permissions={"*": ["admin"]})


INCLUDED: dict[str, set[str]] = {"admin": {*PERMISSIONS}, "operate": {"operate", "read"}}
"""What some permissions include."""


def needed(message: AnyRequest) -> set[str | None]:
    """The permissions that a request needs, with what it does."""
    if getattr(message, "body", b"") and isinstance(message, DamagedRows):
        return {"admin"}
    if getattr(message, "action", "list") not in ("list", "show"):
        return {"operate"}
    if isinstance(message, ListTasks) and message.filter.argument is not None:
        return {"read", "reveal"}
    return {message.permission}


def may(user: str, message: AnyRequest) -> bool:
    """Whether the permissions say that this user may ask this."""
    if message.between_shards:
        return False
    if user == "root" or message.permission is None:
        return True
    if message.anywhere:  # everybody is everything in the namespace m
        named = message.filter if isinstance(message, Queries) else message
        if not getattr(named, "namespace", "") or message.permission == "query":
            return True
        return needed(message) <= INCLUDED.get(user, {user})
    return isinstance(message, PartitionRequest) and needed(message) <= INCLUDED.get(user, {user})


def requests() -> list[AnyRequest]:
    """One of each kind that the fuzzer has, all of them about the namespace n."""
    bodies = [(opcode, body) for opcode, body in PARTS if opcode in REQUESTS and body]
    found = [REQUEST_DECODERS[opcode](body) for opcode, body in bodies]
    return [
        one
        for one in found
        if (one.namespace == "n" if isinstance(one, PartitionRequest) else one.shard == 0)
    ]


def of_operators() -> list[AnyRequest]:
    """The requests of operators about the namespace n, with every action that there is."""
    at = ("n", "q", 1, 0, 1_000)
    argument = TaskFilter(argument=ArgumentFilter("card", b"\x01"))
    found: list[AnyRequest] = [
        *(DeadLetters(*at, action, [1]) for action in actions(DeadLetters)),
        *(DamagedRows(*at, action, [("dead", 1)]) for action in actions(DamagedRows)),
        DamagedRows(*at, "retry", [("dead", 1)], body=b"repaired"),
        *(ControlQueue(*at, action) for action in actions(ControlQueue)),
        *(Workers(*at, action, "ant") for action in actions(Workers)),
        *(ChangeTasks(*at, action, [1]) for action in actions(ChangeTasks)),
        *(Queries(0, 1_000, action, QueryFilter(namespace="n")) for action in actions(Queries)),
        *(Describe(*at), PurgeTasks(*at, "dead"), Resize(*at, 1, 1), DeleteQueue(*at)),
        *(ListTasks(*at, "dead", reveal=True), ListTasks(*at, "dead", argument)),
        ShowTask(*at, 1, reveal=True),
        *(Status(0, 1_000), DescribeCluster(0, 1_000), DrainNode(0, 1_000, "node")),
        *(ShowSeries(0, 1_000, "n"), ListWorkers(0, 1_000, "n")),
        *(ShowWorkerTasks(0, 1_000, [], "n"), ListQueueStates(0, 1_000, "n")),
        *(ShowWorkerSeries(0, 1_000, bytes(16), "n"), ShowShardSeries(0, 1_000)),
    ]
    assert {one.opcode for one in found} >= {
        opcode
        for opcode, kind in REQUESTS.items()
        if kind.permission in ("read", "operate") and kind is not Queues
    }
    return found


def actions(kind: type[Struct]) -> tuple[Any, ...]:
    """The values that the action of a request may have."""
    (field,) = (one for one in fields(kind) if one.name == "action")
    annotated = getattr(field.type, "__value__", field.type)
    return get_args(annotated)


@pytest.mark.parametrize("user", USERS)
@in_a_loop
async def test_a_request_needs_its_permission_in_its_namespace(tmp_path: Path, user: str) -> None:
    async with node(tmp_path, users=USERS) as running:
        running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        client = await running.ready(0, user, "s")
        for opcode in REQUESTS:
            running.shard.holders.setdefault(opcode, _never)
        refused = 0
        for message in [*requests(), *of_operators()]:
            if may(user, message):
                continue
            frame = encode_frame(REQUEST, 0, 1, message.opcode, encode(message))
            problem = error_in(await client.ask(frame))
            assert problem.code == "permission-denied", (user, message)
            refused += 1
        assert refused
        await client.lives()


@pytest.mark.parametrize("user", USERS)
@in_a_loop
async def test_operators_may_do_what_their_permission_says_and_no_more(
    tmp_path: Path, user: str
) -> None:
    async with node(tmp_path, users=USERS) as running:
        running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        client = await running.ready(0, user, "s")
        served: list[AnyRequest] = []

        def serve(message: AnyRequest, held: DeferredReply) -> None:
            served.append(message)
            held.refuse(Draining("Served."))

        for opcode in REQUESTS:
            running.shard.handlers.pop(opcode, None)
            running.shard.holders[opcode] = serve
        for message in of_operators():
            served.clear()
            frame = encode_frame(REQUEST, 0, 1, message.opcode, encode(message))
            problem = error_in(await client.ask(frame))
            expected = "draining" if may(user, message) else "permission-denied"
            assert problem.code == expected, (user, message)
            assert len(served) == may(user, message)
            for one in served:
                reveal = getattr(one, "reveal", None)
                if reveal is not None and isinstance(one, PartitionRequest):
                    wished = getattr(message, "reveal", False)
                    may_see = {"admin", "root"}
                    if not isinstance(message, DamagedRows):
                        may_see.add("reveal")
                    assert reveal == (wished and user in may_see), (user, message)


def _never(message: AnyRequest, held: object) -> None:  # noqa: ARG001
    raise AssertionError(f"{Opcode(message.opcode).name} was served")


@in_a_loop
async def test_results_and_dead_letters_of_another_namespace_cannot_be_reached(
    tmp_path: Path,
) -> None:
    """The numbers are right, the user is known, and the namespace is another one."""
    async with shop(tmp_path) as here:
        first = await here.add(3, terms=Terms(retries=0))
        worker = await here.client("worker")
        one, two = await here.take(worker, 2)
        ends = [End(first, 1, one.proof), End(two.sequence, 1, two.proof, 1)]
        assert await here.finish(worker, ends) == ([], [])
        produced = (Await(*here.at(), first), Revoke(*here.at(), first + 2))
        for user, answered in (("mallory", False), ("worker", False), ("outsider", True)):
            client = await here.client(user)
            for asked in produced:
                assert (await refusal(client, asked) == "") == answered, (user, asked)
        forbidden: dict[str, list[AnyRequest]] = {
            "outsider": [
                *(DeadLetters(*here.at(), "list"), DeadLetters(*here.at(), "retry", [first + 1])),
                *(DeadLetters(*here.at(), "drop", [first + 1]), Describe(*here.at())),
                *(Offer(*here.at(), 0, A, "ant", 1), Finish(*here.at(), A, ends)),
                *(
                    Add(*here.at(namespace="m"), 0, [b"task"]),
                    Await(*here.at(namespace="m"), first),
                ),
            ],
            "mallory": [
                *(Offer(*here.at(namespace="m"), 0, A, "ant", 1), Describe(*here.at())),
                *(Finish(*here.at(namespace="m"), A, ends), Add(*here.at(), 0, [b"task"])),
                *(DeadLetters(*here.at(), "retry", [first + 1]), Queues(0, 0)),
            ],
        }
        for user, messages in forbidden.items():
            client = await here.client(user)
            for message in messages:
                assert await refusal(client, message) == "permission-denied", (user, message)


async def refusal(client: AsyncClient, message: AnyRequest) -> str:
    """The code of the error that the request is answered with; empty if there is none."""
    try:
        await client.request(message, SECONDS)
    except MaitredError as problem:
        return problem.code
    return ""
