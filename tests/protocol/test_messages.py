"""Our messages: both ways, between versions, and whatever is not as it should be."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, defstruct, msgpack
from msgspec.structs import fields

from maitred.errors import InvalidArgument, MaitredError, ProtocolViolation
from maitred.protocol import (
    access,
    cluster,
    gauge_series,
    inspection,
    messages,
    queries,
    queue_overview,
    tasks,
    worker_overview,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import (
    ANSWERS,
    HOLD_MAX_MILLISECONDS,
    REQUEST_DECODERS,
    REQUESTS,
    UNREADABLE,
    Echo,
    Echoed,
    HomeHint,
    ShardStatus,
    Status,
    decode_answer,
    encode,
    not_understood,
    with_home,
    without_home,
)
from maitred.protocol.notation import bytes_map
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS, Request
from maitred.settings import Permission
from tests.protocol.strategies import texts, values

counts = st.integers(0, 2**63 - 1)
shard_statuses = values(ShardStatus)

ECHO: list[Any] = ["namespace", "queue", 1, 3, 1000, b"payload", 0]
STATUS: list[Any] = [0, 1000]
PARTITION: list[Any] = ["namespace", "queue", 1, 3, 1000]
SESSION = bytes(range(16))
PROOF = bytes(range(16, 32))
FILTER: list[Any] = ["n", "q", "alice", "running", "worker", "0001", 7, 0.5, 10]
ROW: dict[str, Any] = {
    "gateway": "00010203",
    "sequence": 7,
    "user": "alice",
    "connection": "127.0.0.1:5",
    "namespace": "n",
    "queue": "q",
    "query": "select",
    "priority": 2,
    "status": "streaming",
    "received_at": 1.5,
    "sent_at": 2.5,
    "returned_at": 3.5,
    "worker": "worker",
    "error": "ValueError",
    "bytes_in": 1,
    "bytes_out": 2,
    "attempts": 1,
    "relayed": True,
    "changed_at": 3.5,
}
MEMBER = ["0" * 16, "node", "10.0.0.7", 4747, 4750, 1, [4748], "active", "0.1.0", [1], 1.5]

CONTROLS = {
    "version": 7,
    "pause": {"by": "ana", "at": 1.5, "reason": "why"},
    "settings": {"rate_per_second": {"value": 5.0, "by": "ana", "at": 1.5, "reason": ""}},
    "words": {"querying.policy": {"value": "spread", "by": "ana", "at": 2.5, "reason": ""}},
}

WHOLE: dict[int, list[Any]] = {
    Opcode.ECHO: ECHO,
    Opcode.STATUS: STATUS,
    Opcode.ADD: [
        *(*PARTITION, 7, [b"a", b"b"], 4, 0.5, 60.0, [1, 0.5, 8.0, 30.0, 0.0, [0, 2]], "user"),
        *("user@10.0.0.7", b"trace"),
    ],
    Opcode.AWAIT: [*PARTITION, 2**32 + 1],
    Opcode.REVOKE: [*PARTITION, 2**32 + 1],
    Opcode.OFFER: [*PARTITION, 7, SESSION, "worker", 32, 1, "host:1", "user"],
    Opcode.FINISH: [*PARTITION, SESSION, [[2**32 + 1, 1, PROOF, 1, b"body"]], "user"],
    Opcode.HEARTBEAT: [*PARTITION, SESSION, "worker", [[2**32 + 1, 1, PROOF]], "user"],
    Opcode.FORWARD: [*PARTITION, 7, 3, 2**32 + 1, 1, 2, 30.0, b"payload", 0.1, 5.0, b"t"],
    Opcode.SYNC: [*PARTITION, [4, 2, 7], True, "user", CONTROLS],
    Opcode.DESCRIBE: PARTITION,
    Opcode.RESIZE: [*PARTITION, 4, 2, True, "user", "10.0.0.7:1"],
    Opcode.CONTROL: [
        *(*PARTITION, "set", "why", 7, {"rate_per_second": 5.0}, ["scaling.adaptive"], "user"),
        "10.0.0.7:1",
    ],
    Opcode.PURGE: [*PARTITION, "dead", 60.0, True, 7, [1, 2], "why", "user", "10.0.0.7:1"],
    Opcode.LIST_TASKS: [
        *(*PARTITION, "ended", ["worker", "ValueError", "alice", 1.5, 2.5, ["card", b"\x01"]]),
        *([2.5, 2**32], 10, True),
    ],
    Opcode.SHOW_TASK: [*PARTITION, 2**32 + 1, True],
    Opcode.CHANGE_TASKS: [*PARTITION, "again", [2**32 + 1], "why", "user", "10.0.0.7:1"],
    Opcode.DEAD: [*PARTITION, "retry", [2**32 + 1], 100, False],
    Opcode.QUEUES: [*STATUS, ["namespace"]],
    Opcode.DELETE: [*PARTITION, True, "user", "10.0.0.7:1"],
    Opcode.WITHDRAW: [*STATUS, "shop", "mails", 1, True],
    Opcode.SIGNATURES: [*PARTITION, True],
    Opcode.DAMAGED: [*PARTITION, "retry", [["segment", 7]], 5, True, b"body", False],
    Opcode.OFFER_MANY: [
        *PARTITION,
        SESSION,
        "worker",
        32,
        1,
        [["mails", 1, 3, 7]],
        "host:1",
        "user",
    ],
    Opcode.ALLOCATE: [*PARTITION, 7, SESSION, 8, 1, 0.5, "alice", 1, True, [SESSION]],
    Opcode.SUBSCRIBE: [*PARTITION, SESSION, 7, "alice"],
    Opcode.SUSPECT: [*PARTITION, SESSION, [SESSION]],
    Opcode.ATTEND: [
        *(*PARTITION, SESSION, "worker", "host:1", 8, 2, "draining", 0.5, "user"),
        *(5, "waiting", 3, b"s"),
    ],
    Opcode.RUNNING: [*PARTITION, SESSION, {"alice": [bytes(38)]}, {"bob": [bytes(38)]}],
    Opcode.COUNT: [*STATUS, {"alice": [SESSION]}, {"/n/q": [SESSION]}, "alice", 2, [SESSION]],
    Opcode.CREATE_TOKEN: [*STATUS, "bob", 60.0, "ci", {"n": ["query"]}, "alice"],
    Opcode.LIST_TOKENS: STATUS,
    Opcode.REVOKE_TOKEN: [*STATUS, "0" * 16, "alice"],
    Opcode.INTROSPECT: [*STATUS, "mtd_0_0"],
    Opcode.RELOAD: STATUS,
    Opcode.WORKERS: [*PARTITION, "offline", "worker", "user", "10.0.0.7:1"],
    Opcode.RELAY: [*PARTITION, SESSION, 1, b"message", True],
    Opcode.FETCH: [*PARTITION, SESSION, True],
    Opcode.DELIVER: [*PARTITION, SESSION, 1, 0x61, b"piece", True],
    Opcode.WATCH: [*STATUS, SESSION, "gateway", "ann", ["namespace"], "10.0.0.1"],
    Opcode.REPORT: [*STATUS, SESSION, 1, [ROW], "ann"],
    Opcode.QUERIES: [*STATUS, "cancel", FILTER, ["namespace"], False, ["namespace"], "user"],
    Opcode.SERIES: [*STATUS, "namespace", "queue", 6, ["namespace"]],
    Opcode.QUEUE_STATES: [
        *(*STATUS, "namespace", "part", "backlog", [7.0, "namespace", "queue"], 10),
        *([["namespace", "queue"]], ["namespace"]),
    ],
    Opcode.LIST_WORKERS: [
        *(*STATUS, "namespace", "queue", "part", ["worker", SESSION], 10, ["namespace"]),
    ],
    Opcode.WORKER_TASKS: [*STATUS, [SESSION], "namespace", ["namespace"]],
    Opcode.WORKER_SERIES: [*STATUS, SESSION, "namespace", 6, ["namespace"]],
    Opcode.SHARD_SERIES: [*STATUS, 6],
    Opcode.TELL_VIEW: [*STATUS, ["cluster", 7, [MEMBER], "0", "wrap"]],
    Opcode.HAND_OVER: [*PARTITION, 7],
    Opcode.CLUSTER: STATUS,
    Opcode.DRAIN_NODE: [*STATUS, "10.0.0.7:4747", False],
}
"""A request of each kind, with everything that it may have."""


MODULES = (
    *(messages, tasks, inspection, queries, queue_overview, worker_overview, gauge_series),
    *(access, cluster),
)
"""All that have requests."""


def decoded(opcode: int, body: bytes) -> Request:
    """As a node does it."""
    try:
        return REQUEST_DECODERS[opcode](body)
    except UNREADABLE as problem:
        raise not_understood(opcode, problem) from None


@pytest.mark.parametrize("opcode", REQUESTS)
@given(data=st.data())
def test_a_request_both_ways(opcode: int, data: st.DataObject) -> None:
    request = data.draw(values(REQUESTS[opcode]))
    assert decoded(opcode, encode(request)) == request


@pytest.mark.parametrize("opcode", ANSWERS)
@given(data=st.data())
def test_an_answer_both_ways(opcode: int, data: st.DataObject) -> None:
    answer = data.draw(values(ANSWERS[opcode]))
    assert decode_answer(opcode, encode(answer)) == answer


@pytest.mark.parametrize("opcode", REQUESTS)
def test_what_is_written_is_the_fields_in_their_order(opcode: int) -> None:
    request = decoded(opcode, msgpack.encode(WHOLE[opcode]))
    assert msgpack.decode(encode(request)) == WHOLE[opcode]
    assert len(WHOLE[opcode]) == len(fields(REQUESTS[opcode]))


def test_the_order_of_fields_is_the_protocol() -> None:
    """It is never changed: another order would be read as other values."""
    assert [field.name for field in fields(Echo)] == [
        "namespace",
        "queue",
        "queue_type",
        "partition",
        "timeout_milliseconds",
        "payload",
        "hold_milliseconds",
    ]
    assert [field.name for field in fields(Status)] == ["shard", "timeout_milliseconds"]
    assert [field.name for field in fields(Echoed)] == ["payload", "shard"]
    assert msgpack.decode(encode(Echo(*ECHO))) == ECHO
    assert msgpack.decode(encode(Status(*STATUS))) == STATUS


def test_every_request_has_its_opcode_a_permission_and_an_answer() -> None:
    assert REQUESTS.keys() == ANSWERS.keys() == REQUEST_DECODERS.keys()
    for opcode, kind in REQUESTS.items():
        assert kind.opcode == opcode >= 0x40
        # A caller that asks whose token it is has the token.
        assert (
            kind.permission in get_args(Permission)
            or kind is access.Introspect
            or kind.between_shards
        )
    kinds = {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Request) and hasattr(kind, "opcode")
    }
    assert kinds == set(REQUESTS.values())


# Versions


class NewerEcho(Echo, array_like=True):
    priority: int = 5
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it


class NewerEchoed(Echoed, array_like=True):
    node: str = "unknown"


class NewerShardStatus(ShardStatus, kw_only=True):
    backlog: int = 7


class NewerHome(Struct, array_like=True):
    node: str
    shard: int
    until: float = 1.5


def test_an_older_reader_skips_what_it_does_not_know() -> None:
    newer = NewerEcho(*[*ECHO, 9, {"a": "b"}])
    assert decoded(Opcode.ECHO, encode(newer)) == Echo(*ECHO)
    assert decode_answer(Opcode.ECHO, encode(NewerEchoed(b"p", 1, "node"))) == Echoed(b"p", 1)
    body = bytes_map({"maitred-home": encode(NewerHome("node", 2))}) + b"rest"
    assert without_home(body) == (HomeHint("node", 2), b"rest")


@given(shard_statuses)
def test_an_older_reader_skips_fields_of_a_map(status: ShardStatus) -> None:
    fields_ = {name: getattr(status, name) for name in status.__struct_fields__}
    newer = NewerShardStatus(**fields_, backlog=3)
    assert decode_answer(Opcode.STATUS, encode(newer)) == status
    assert msgpack.decode(encode(status), type=NewerShardStatus).backlog == 7


def test_a_newer_reader_fills_in_what_an_older_writer_did_not_know() -> None:
    read = msgpack.decode(encode(Echo(*ECHO)), type=NewerEcho)
    assert (read.payload, read.priority, read.labels) == (b"payload", 5, {})
    older = defstruct(
        "OlderEcho",
        [(field.name, field.type) for field in fields(Echo)[:-1]],
        array_like=True,
    )
    assert decoded(Opcode.ECHO, encode(older(*ECHO[:-1]))) == Echo(*(*ECHO[:-1], 0))


# Malformed messages

WRONG: list[tuple[int, int, object]] = [
    *((Opcode.ECHO, at, value) for at in (0, 1) for value in (1, None, b"bytes", ["a"])),
    *((Opcode.ECHO, at, value) for at in (2, 3) for value in ("1", None, 1.5, [1], True)),
    *((Opcode.ECHO, 4, value) for value in (-1, TIMEOUT_MAX_MILLISECONDS + 1, 1.5, "1", None)),
    *((Opcode.ECHO, 5, value) for value in ("text", 1, None, [1])),
    *((Opcode.ECHO, 6, value) for value in (-1, HOLD_MAX_MILLISECONDS + 1, "1", None)),
    *((Opcode.STATUS, 0, value) for value in (-1, "0", None, 0.5)),
    *((Opcode.STATUS, 1, value) for value in (-1, TIMEOUT_MAX_MILLISECONDS + 1, 2**64 - 1, None)),
]


@pytest.mark.parametrize(("opcode", "at", "value"), WRONG)
def test_a_field_of_the_wrong_kind(opcode: int, at: int, value: object) -> None:
    wrong = [*WHOLE[opcode]]
    decoded(opcode, msgpack.encode(wrong))
    wrong[at] = value
    with pytest.raises(InvalidArgument, match=Opcode(opcode).name) as caught:
        decoded(opcode, msgpack.encode(wrong))
    assert f"[{at}]" in caught.value.sentence


@pytest.mark.parametrize("opcode", REQUESTS)
def test_a_field_that_is_missing(opcode: int) -> None:
    needed = sum(field.required for field in fields(REQUESTS[opcode]))
    for size in range(needed):
        with pytest.raises(InvalidArgument, match=Opcode(opcode).name):
            decoded(opcode, msgpack.encode(WHOLE[opcode][:size]))
    decoded(opcode, msgpack.encode(WHOLE[opcode][:needed]))


@pytest.mark.parametrize("value", [{}, {"namespace": "n"}, None, 1, "text", b""])
def test_no_array_at_all(value: object) -> None:
    for opcode in REQUESTS:
        with pytest.raises(InvalidArgument, match=Opcode(opcode).name):
            decoded(opcode, msgpack.encode(value))


@pytest.mark.parametrize("opcode", REQUESTS)
def test_a_request_that_ends_early(opcode: int) -> None:
    body = msgpack.encode(WHOLE[opcode])
    for size in range(len(body)):
        with pytest.raises(ProtocolViolation, match=Opcode(opcode).name):
            decoded(opcode, body[:size])


@pytest.mark.parametrize("rubbish", [b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x90\x90"])
def test_a_request_that_is_no_msgpack(rubbish: bytes) -> None:
    for opcode in REQUESTS:
        with pytest.raises(MaitredError, match=Opcode(opcode).name):
            decoded(opcode, rubbish)


def test_numbers_as_large_as_msgpack_has() -> None:
    huge = decoded(Opcode.ECHO, msgpack.encode(["n", "q", 2**64 - 1, -(2**63), 0, b""]))
    assert isinstance(huge, Echo)
    assert (huge.queue_type, huge.partition) == (2**64 - 1, -(2**63))


NOT_UTF_8 = b"\xa2\xff\xfe"
DEEP = b"\x91" * 100_000 + b"\xc0"  # newer Pythons skip ten thousand without a word


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(ProtocolViolation, match=r"ECHO.*utf-8"):
        decoded(Opcode.ECHO, b"\x96" + NOT_UTF_8 + b"\xa1q\x01\x00\x01\xc4\x00")


def test_unknown_fields_nested_too_deep() -> None:
    """They are skipped, but not even skipping goes on for ever."""
    with pytest.raises(ProtocolViolation, match=r"ECHO.*recursion"):
        decoded(Opcode.ECHO, b"\x98" + b"".join(map(msgpack.encode, ECHO)) + DEEP)


@given(st.binary(max_size=80))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for opcode in REQUESTS:
        try:
            decoded(opcode, body)
        except (InvalidArgument, ProtocolViolation) as problem:
            name = Opcode(opcode).name
            if name not in problem.sentence:
                pytest.fail(f"nobody learns that it was {name}")


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x80", b"\x92\xa1p\x01", b"\x00"])
def test_an_answer_that_is_none(body: bytes) -> None:
    for opcode, kind in ANSWERS.items():
        there_are = fields(kind)
        all_optional = not any(field.required for field in there_are)
        if all_optional and (body == b"\x90" or (not there_are and body[:1] == b"\x92")):
            decode_answer(opcode, body)  # all of it may be left out, and what is more is skipped
            continue
        with pytest.raises(ProtocolViolation, match=Opcode(opcode).name):
            decode_answer(opcode, body)


def test_an_answer_that_is_not_utf_8() -> None:
    with pytest.raises(ProtocolViolation, match="STATUS"):
        decode_answer(Opcode.STATUS, b"\x81\xa4node" + NOT_UTF_8)


def test_an_answer_nested_too_deep() -> None:
    with pytest.raises(ProtocolViolation, match="ECHO"):
        decode_answer(Opcode.ECHO, b"\x93\xc4\x00\x00" + DEEP)


# Homes


@given(st.builds(HomeHint, texts, counts), st.binary(max_size=50))
def test_a_home_travels_in_front_of_a_body(home: HomeHint, body: bytes) -> None:
    assert without_home(with_home(home, body)) == (home, body)


@given(st.binary(max_size=20))
def test_other_entries_of_a_custom_payload_are_skipped(body: bytes) -> None:
    home = encode(HomeHint("node", 1))
    several = bytes_map({"trace": b"abc", "maitred-home": home, "nothing": None})
    assert without_home(several + body) == (HomeHint("node", 1), body)
    assert without_home(bytes_map({"trace": b"abc"}) + body) == (None, body)
    assert without_home(bytes_map({}) + body) == (None, body)
    assert without_home(bytes_map({"maitred-home": None}) + body) == (None, body)


@pytest.mark.parametrize(
    "home", [b"", b"\xc1", b"\x91\xa1n", b"\x92\x01\x01", b"\x92" + NOT_UTF_8 + b"\x01"]
)
def test_a_home_that_makes_no_sense(home: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="maitred-home"):
        without_home(bytes_map({"maitred-home": home}))


def test_a_custom_payload_that_ends_early() -> None:
    whole = with_home(HomeHint("node", 1), b"")
    for size in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            without_home(whole[:size])
