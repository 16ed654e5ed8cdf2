"""Whoever names a task, a queue or a worker by a number that can be guessed needs the permission.

Every request of the protocol is sent by users who have one permission in the namespace, and every
permission in another one. What a request needs is in its class; the permission of another kind, or
of another namespace, is worth nothing. What shards say to each other is refused to everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from fuzz.parts import PARTS

from maitred.errors import MaitredError
from maitred.matching.records import Terms
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.messages import REQUEST_DECODERS, REQUESTS, encode
from maitred.protocol.requests import PartitionRequest
from maitred.protocol.tasks import (
    Add,
    Await,
    DeadLetters,
    Describe,
    End,
    Finish,
    Offer,
    Queues,
    Revoke,
)
from maitred.settings import Permission, User
from tests.attacks.test_03_forged_ends import HASHED, SECONDS, A, shop
from tests.node.in_process import in_a_loop, node
from tests.node.raw import error_in

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.messages import AnyRequest

PERMISSIONS: tuple[Permission, ...] = get_args(Permission)
USERS: dict[str, User] = {
    one: User(secret=HASHED, permissions={"n": [one], "m": [*PERMISSIONS]}) for one in PERMISSIONS
}
USERS["root"] = User(secret=HASHED, permissions={"*": ["admin"]})


def may(user: str, message: AnyRequest) -> bool:
    """Whether the permissions say that this user may ask this."""
    if message.between_shards:
        return False
    if user == "root" or message.anywhere or message.permission is None:
        return True
    return isinstance(message, PartitionRequest) and user in (message.permission, "admin")


def requests() -> list[AnyRequest]:
    """One of each kind that the fuzzer has, all of them about the namespace n."""
    bodies = [(opcode, body) for opcode, body in PARTS if opcode in REQUESTS and body]
    found = [REQUEST_DECODERS[opcode](body) for opcode, body in bodies]
    return [
        one
        for one in found
        if (one.namespace == "n" if isinstance(one, PartitionRequest) else one.shard == 0)
    ]


@pytest.mark.parametrize("user", USERS)
@in_a_loop
async def test_a_request_needs_its_permission_in_its_namespace(tmp_path: Path, user: str) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await running.ready(0, user, "s")
        for opcode in REQUESTS:
            running.shard.holders.setdefault(opcode, _never)
        refused = 0
        for message in requests():
            if may(user, message):
                continue
            frame = encode_frame(REQUEST, 0, 1, message.opcode, encode(message))
            problem = error_in(await client.ask(frame))
            assert problem.code == "permission-denied", (user, message)
            refused += 1
        assert refused
        await client.lives()


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
