"""What is said about tasks: both ways, in an order that stays, and whatever is not as it should be.

What holds for every message is in test_messages.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct, ValidationError, msgpack
from msgspec.structs import fields

from maitred.matching.records import PRIORITIES, Terms
from maitred.protocol.frames import Opcode
from maitred.protocol.inspection import (
    CHANGED_MAX,
    INSPECTION_EXCHANGES,
    LISTED_MAX,
    ArgumentFilter,
    HistoryEvent,
    ListedTask,
    TaskFilter,
)
from maitred.protocol.messages import REQUEST_DECODERS, REQUESTS, decode_answer
from maitred.protocol.requests import PartitionRequest, ShardRequest
from maitred.protocol.shared_offers import OfferedMany, OfferMany, SetMember
from maitred.protocol.tasks import (
    DONE,
    EXCHANGES,
    FAILED,
    NEVER,
    RETURNED,
    STOPPED,
    TASKS_MAX,
    TIMED_OUT,
    Add,
    Added,
    Counts,
    DeadLetter,
    End,
    Failure,
    Given,
    Offered,
    PartitionDescription,
    Reserved,
)

ORDER: dict[type[Struct], str] = {
    Counts: "read write version",
    Terms: "retries backoff_first backoff_longest timeout retention hidden",
    Given: "partition sequence attempt proof timeout payload waited trace",
    End: "sequence attempt proof how body",
    Failure: "kind message traceback",
    Reserved: "partition token user reservation_seconds run_seconds result_bytes stream_bytes "
    "again_seconds tracebacks proof range_id",
    TaskFilter: "worker error by added_after added_before argument",
    ArgumentFilter: "name value",
}
"""The fields of what is inside of messages. They are never in another order."""

REQUEST_ORDER: dict[int, str] = {
    Opcode.ADD: "version payloads priority delay expires terms user origin traces",
    Opcode.AWAIT: "sequence",
    Opcode.REVOKE: "sequence",
    Opcode.OFFER: "version session worker slots hops address user",
    Opcode.FINISH: "session ends user",
    Opcode.HEARTBEAT: "session worker running user",
    Opcode.FORWARD: (
        "version origin sequence attempt priority task_timeout payload waited expires trace"
    ),
    Opcode.SYNC: "counts makes user controls",
    Opcode.DESCRIBE: "",
    Opcode.RESIZE: "read write force user source",
    Opcode.CONTROL: "action reason version settings unset user source",
    Opcode.PURGE: "state older_than dry_run until cursor reason user source",
    Opcode.LIST_TASKS: "state filter after most reveal",
    Opcode.SHOW_TASK: "sequence reveal",
    Opcode.CHANGE_TASKS: "action sequences reason user source",
    Opcode.DEAD: "action sequences most reveal",
    Opcode.QUEUES: "within",
    Opcode.DELETE: "force user source",
    Opcode.WITHDRAW: "namespace queue queue_type drop",
    Opcode.SIGNATURES: "must_exist",
    Opcode.DAMAGED: "action rows most ignore_checksum body reveal",
}
ANSWER_ORDER: dict[int, str] = {
    Opcode.ADD: "first counts results",
    Opcode.AWAIT: "status attempts body",
    Opcode.REVOKE: "state",
    Opcode.OFFER: "tasks lease_seconds backlog rate counts reserved",
    Opcode.FINISH: "late refused follows",
    Opcode.HEARTBEAT: "lost revoked",
    Opcode.FORWARD: "holder worker counts",
    Opcode.SYNC: "version drained added_per_second backlog counts controls",
    Opcode.RESIZE: "counts",
    Opcode.CONTROL: "controls changed partitions told",
    Opcode.PURGE: "tasks is_complete until cursor",
    Opcode.LIST_TASKS: "tasks cursor looked_at now",
    Opcode.SHOW_TASK: "task events node shard retention timeout lease_until traceback result "
    "result_withheld function",
    Opcode.CHANGE_TASKS: "done left added",
    Opcode.DEAD: "letters total",
    Opcode.QUEUES: "queues quotas",
    Opcode.DELETE: "partitions tasks dead workers",
    Opcode.WITHDRAW: "tasks workers queries",
    Opcode.SIGNATURES: "signatures served_seconds_ago paused_seconds_ago",
    Opcode.DAMAGED: "rows total tasks",
}
MAPS = {PartitionDescription, DeadLetter, ListedTask, HistoryEvent}


def names(kind: type[Struct]) -> list[str]:
    return [field.name for field in fields(kind)]


def test_the_order_of_fields_is_the_protocol() -> None:
    """A field that is moved or removed would be read as another one: fields only ever come at the
    end, with a default."""
    for kind, answer in (*EXCHANGES, *INSPECTION_EXCHANGES):
        base = PartitionRequest if issubclass(kind, PartitionRequest) else ShardRequest
        assert names(kind) == [*names(base), *REQUEST_ORDER[kind.opcode].split()], kind
        if kind.opcode in ANSWER_ORDER:
            assert names(answer) == ANSWER_ORDER[kind.opcode].split(), answer
    for inside, order in ORDER.items():
        assert names(inside) == order.split()
    told = "session worker slots number members address user"
    assert names(OfferMany) == [*names(PartitionRequest), *told.split()]
    assert names(OfferedMany) == ["gifts", "known", "urgency", "hungry", "refused", "elsewhere"]
    assert names(SetMember) == ["queue", "queue_type", "partition", "version"]


def test_what_is_an_array_and_what_is_a_map() -> None:
    for _, answer in (*EXCHANGES, *INSPECTION_EXCHANGES):
        assert answer.__struct_config__.array_like == (answer not in MAPS), answer
    assert not any(inside.__struct_config__.array_like for inside in MAPS)
    assert all(inside.__struct_config__.array_like for inside in ORDER)


def test_which_are_between_shards_and_which_may_be_repeated() -> None:
    """What is not listed here is done twice if it is sent twice."""
    between = {kind.opcode for kind in REQUESTS.values() if kind.between_shards}
    assert between == {
        Opcode.FORWARD,
        Opcode.SYNC,
        Opcode.COUNT,
        Opcode.WITHDRAW,
        Opcode.TELL_VIEW,
        Opcode.HAND_OVER,
    }
    repeatable = {kind.opcode for kind in REQUESTS.values() if kind.repeatable}
    assert set(REQUESTS) - repeatable == {
        Opcode.ADD,
        Opcode.OFFER,
        Opcode.OFFER_MANY,
        Opcode.FORWARD,
        Opcode.RESIZE,
        Opcode.CONTROL,
        Opcode.PURGE,
        Opcode.CHANGE_TASKS,
        Opcode.DEAD,
        Opcode.DAMAGED,
        Opcode.DELETE,
        Opcode.WORKERS,
        Opcode.RELAY,
        Opcode.DELIVER,
        Opcode.QUERIES,
        Opcode.CREATE_TOKEN,
        Opcode.REVOKE_TOKEN,
        Opcode.DRAIN_NODE,
    }


def test_numbers_that_mean_something() -> None:
    assert (DONE, FAILED, RETURNED, TIMED_OUT, STOPPED) == (0, 1, 2, 3, 4)
    assert PRIORITIES == 5


PROOF = bytes(range(16))

ADD: list[Any] = ["n", "q", 1, 0, 1000, 3, [b"payload"]]
OFFER: list[Any] = ["n", "q", 1, 0, 1000, 3, bytes(16), "w", 8]
FINISH: list[Any] = ["n", "q", 1, 0, 1000, bytes(16), [[1, 1, PROOF]]]
BEAT: list[Any] = ["n", "q", 1, 0, 1000, bytes(16), "w", [[1, 1, PROOF]]]
DEAD: list[Any] = ["n", "q", 1, 0, 1000, "list", [], 5]
LIST: list[Any] = ["n", "q", 1, 0, 1000, "ended", [], [0.0, 0], 5]
SHOW: list[Any] = ["n", "q", 1, 0, 1000, 1]
CHANGE: list[Any] = ["n", "q", 1, 0, 1000, "cancel", [1]]
SHORT: dict[int, list[Any]] = {
    Opcode.ADD: ADD,
    Opcode.OFFER: OFFER,
    Opcode.FINISH: FINISH,
    Opcode.HEARTBEAT: BEAT,
    Opcode.DEAD: DEAD,
    Opcode.LIST_TASKS: LIST,
    Opcode.SHOW_TASK: SHOW,
    Opcode.CHANGE_TASKS: CHANGE,
}
MANY = TASKS_MAX

EDGES: list[tuple[int, int, object, object]] = [
    # opcode, position, a value at the end of its range, one beyond
    (Opcode.ADD, 5, 0, -1),
    (Opcode.ADD, 6, [b""], []),
    (Opcode.ADD, 6, [b""] * MANY, [b""] * (MANY + 1)),
    (Opcode.ADD, 7, 0, -1),
    (Opcode.ADD, 7, PRIORITIES - 1, PRIORITIES),
    *((Opcode.ADD, at, 0.0, -0.001) for at in (8, 9)),
    *((Opcode.ADD, at, NEVER, NEVER + 1) for at in (8, 9)),
    *((Opcode.ADD, at, 0, float("nan")) for at in (8, 9)),
    *((Opcode.ADD, at, 0, float("inf")) for at in (8, 9)),
    (Opcode.OFFER, 6, bytes(16), bytes(15)),
    (Opcode.OFFER, 6, bytes(16), bytes(17)),
    (Opcode.OFFER, 7, "w" * 200, "w" * 201),
    (Opcode.OFFER, 8, 1, 0),
    (Opcode.OFFER, 8, MANY, MANY + 1),
    (Opcode.OFFER, 9, 0, -1),
    (Opcode.OFFER, 10, "h" * 300, "h" * 301),
    (Opcode.FINISH, 6, [[1, 1, PROOF, 0]], []),
    (Opcode.FINISH, 6, [[1, 1, PROOF]] * MANY, [[1, 1, PROOF]] * (MANY + 1)),
    (Opcode.FINISH, 6, [[1, 1, PROOF]], [[1, 1]]),
    (Opcode.FINISH, 6, [[1, 1, PROOF]], [[1, 1, PROOF[1:]]]),
    (Opcode.FINISH, 6, [[1, 1, PROOF]], [[1, 1, PROOF + b"."]]),
    (Opcode.FINISH, 6, [[1, 1, PROOF, DONE]], [[1, 1, PROOF, DONE - 1]]),
    (Opcode.FINISH, 6, [[1, 1, PROOF, STOPPED]], [[1, 1, PROOF, STOPPED + 1]]),
    (Opcode.HEARTBEAT, 7, [], [[1, 1]]),
    (Opcode.HEARTBEAT, 7, [[1, 1, PROOF]], [[1, 1, PROOF[1:]]]),
    (Opcode.HEARTBEAT, 7, [[1, 1, PROOF]] * MANY, [[1, 1, PROOF]] * (MANY + 1)),
    (Opcode.DEAD, 5, "drop", "burn"),
    (Opcode.DEAD, 6, [1] * MANY, [1] * (MANY + 1)),
    (Opcode.DEAD, 7, 1, 0),
    (Opcode.DEAD, 7, MANY, MANY + 1),
    (Opcode.LIST_TASKS, 5, "expired", "failed"),
    (Opcode.LIST_TASKS, 6, ["w" * 200], ["w" * 201]),
    (Opcode.LIST_TASKS, 6, ["", "", "", 0, 0, ["a", b""]], ["", "", "", 0, 0, ["a"]]),
    (Opcode.LIST_TASKS, 7, [0.0, 0], [0.0, -1]),
    (Opcode.LIST_TASKS, 8, 1, 0),
    (Opcode.LIST_TASKS, 8, LISTED_MAX, LISTED_MAX + 1),
    (Opcode.SHOW_TASK, 5, 0, -1),
    (Opcode.CHANGE_TASKS, 5, "run-now", "run"),
    (Opcode.CHANGE_TASKS, 6, [0], [-1]),
    (Opcode.CHANGE_TASKS, 6, [1], []),
    (Opcode.CHANGE_TASKS, 6, [1] * CHANGED_MAX, [1] * (CHANGED_MAX + 1)),
    (Opcode.CHANGE_TASKS, 7, "r" * 500, "r" * 501),
]


@pytest.mark.parametrize(
    ("opcode", "at", "inside", "outside"),
    EDGES,
    ids=[f"{Opcode(opcode).name}-{at}-{index}" for index, (opcode, at, _, _) in enumerate(EDGES)],
)
def test_each_range_at_its_end_and_beyond(
    opcode: int, at: int, inside: object, outside: object
) -> None:
    fillers: list[object] = [2, 0.0, 0.0]  # for an ADD without what may be left out
    body = [*SHORT[opcode]]
    while len(body) <= at:
        body.append(fillers[len(body) - len(ADD)] if opcode == Opcode.ADD else 0)
    decode = REQUEST_DECODERS[opcode]
    body[at] = inside
    decode(msgpack.encode(body))
    body[at] = outside
    with pytest.raises(ValidationError, match=rf"\$\[{at}\]"):
        decode(msgpack.encode(body))


def test_what_may_be_left_out_has_its_default() -> None:
    add = REQUEST_DECODERS[Opcode.ADD](msgpack.encode(ADD))
    assert isinstance(add, Add)
    assert (add.priority, add.delay, add.expires, add.terms) == (2, 0.0, 0.0, Terms())
    # Terms, too, may be short: whoever only sets the retries sends [5].
    add = REQUEST_DECODERS[Opcode.ADD](msgpack.encode([*ADD, 2, 0, 0, [5]]))
    assert isinstance(add, Add)
    assert add.terms == Terms(retries=5)
    ended = msgpack.decode(msgpack.encode([7, 1, PROOF]), type=End)
    assert ended == End(7, 1, PROOF, DONE, b"\xc0")


def test_an_answer_of_an_older_node_says_nothing_of_counts() -> None:
    assert decode_answer(Opcode.ADD, msgpack.encode([7])) == Added(7)
    assert decode_answer(Opcode.OFFER, msgpack.encode([[], 10.0, 0, 0.0])) == (
        Offered([], 10.0, 0, 0.0)
    )
