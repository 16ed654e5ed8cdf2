"""What is said about queries: in an order that stays, and whatever is not as it should be.

What holds for every message is in test_messages.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError, Struct, ValidationError, msgpack
from msgspec.structs import fields

from maitred import settings
from maitred.matching.records import PRIORITIES
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import REQUEST_DECODERS, decode_answer
from maitred.protocol.queries import (
    LISTED_MAX,
    PROOF_BYTES,
    QUERY_EXCHANGES,
    SLOTS_MAX,
    Allocate,
    Allocated,
    Allocation,
    Attended,
    Member,
    Order,
    Pass,
    QueryFilter,
    QueryRow,
    Roster,
    SheddingTerms,
    Subscribe,
    WorkerRow,
)
from maitred.protocol.query_link import (
    CREDIT,
    QUERY_LINK_VERSION,
    Greeting,
    Hello,
    Load,
    Proof,
    QueryEnd,
    RunQuery,
    decode_greeting,
    decode_hello,
    decode_load,
    decode_proof,
    decode_query_end,
    decode_run,
    encode_greeting,
    encode_hello,
    encode_load,
    encode_proof,
    encode_query_end,
    encode_run,
)
from maitred.protocol.requests import PartitionRequest, ShardRequest
from maitred.protocol.tasks import DONE, NEVER, STOPPED
from tests.protocol.strategies import values
from tests.protocol.test_tasks import names

ORDER: dict[type[Struct], str] = {
    Allocation: "partition token session worker address",
    Member: "session worker address slots token",
    Pass: "token gateway user seconds run_seconds result_bytes stream_bytes tracebacks",
    SheddingTerms: "wait_target_seconds length holdback retry_share retries_per_second",
    Order: "number action filter",
    QueryFilter: "namespace queue user status worker gateway sequence changed_since most",
    Hello: "challenge version",
    Greeting: "proof challenge version frame_bytes",
    Proof: "proof name frame_bytes",
    RunQuery: (
        "token sequence timeout_milliseconds window_bytes payload rows in_flight pressed lost trace"
    ),
    QueryEnd: "how body streamed rows run_seconds load again again_seconds",
    Load: "number limit serving waiting mean_service_seconds yours senders",
}
"""The fields of what is inside of messages, or on the link to a worker."""

REQUEST_ORDER: dict[int, str] = {
    Opcode.ALLOCATE: "version session slots priority waited user hops do_not_queue permits",
    Opcode.SUBSCRIBE: "session version user",
    Opcode.SUSPECT: "worker_session refused",
    Opcode.ATTEND: "session worker address slots busy state good user limit limit_reason blocked "
    "signature",
    Opcode.RUNNING: "session running ended",
    Opcode.COUNT: "held over name limit wanted",
    Opcode.WORKERS: "action worker user source",
    Opcode.RELAY: "token ordinal query stop",
    Opcode.FETCH: "token running",
    Opcode.DELIVER: "token ordinal kind body more",
    Opcode.WATCH: "session name user within network",
    Opcode.REPORT: "session number rows user",
    Opcode.QUERIES: "action filter within reveal revealed user",
}
ANSWER_ORDER: dict[int, str] = {
    Opcode.ALLOCATE: "allocations counts policy",
    Opcode.SUBSCRIBE: "version policy members shedding",
    Opcode.SUSPECT: "offers",
    Opcode.ATTEND: "order counts passes best",
    Opcode.RUNNING: "refused",
    Opcode.COUNT: "granted",
    Opcode.WORKERS: "workers",
    Opcode.RELAY: "kind body more",
    Opcode.FETCH: "query stop",
    Opcode.DELIVER: "stop",
    Opcode.WATCH: "orders",
    Opcode.REPORT: "",
    Opcode.QUERIES: "rows gateways silent",
}


def test_the_order_of_fields_is_the_protocol() -> None:
    """Fields only ever come at the end, with a default."""
    for kind, answer in QUERY_EXCHANGES:
        base = PartitionRequest if issubclass(kind, PartitionRequest) else ShardRequest
        assert names(kind) == [*names(base), *REQUEST_ORDER[kind.opcode].split()], kind
        assert names(answer) == ANSWER_ORDER[kind.opcode].split(), answer
        assert answer.__struct_config__.array_like
    for inside, order in ORDER.items():
        assert names(inside) == order.split()
        assert inside.__struct_config__.array_like
    for read_by_people in (QueryRow, WorkerRow):
        assert not read_by_people.__struct_config__.array_like


PARTITION: list[Any] = ["n", "q", 1, 0, 1000]
TOKEN = bytes(16)
PROVEN = TOKEN + bytes(PROOF_BYTES)
ALLOCATE = [*PARTITION, 0, TOKEN, 1, 2, 0.0, "", 0, False, []]
ATTEND = [*PARTITION, TOKEN, "w", "h:1", 1, 0, "online", 1.0, "", 1, "slots", 0, b"signature"]
WHOLE: dict[int, list[Any]] = {
    Opcode.ALLOCATE: ALLOCATE,
    Opcode.SUBSCRIBE: [*PARTITION, TOKEN, 0, ""],
    Opcode.ATTEND: ATTEND,
    Opcode.RUNNING: [*PARTITION, TOKEN, {}, {}],
    Opcode.COUNT: [0, 1000, {}, {}, "", 0, []],
    Opcode.SUSPECT: [*PARTITION, TOKEN, []],
    Opcode.WORKERS: [*PARTITION, "list", ""],
    Opcode.RELAY: [*PARTITION, TOKEN, 0, b""],
    Opcode.FETCH: [*PARTITION, TOKEN, False],
    Opcode.DELIVER: [*PARTITION, TOKEN, 0, 0x61, b"", False],
    Opcode.WATCH: [0, 1000, TOKEN, "name"],
    Opcode.QUERIES: [0, 1000, "list", []],
}

EDGES: list[tuple[int, int, object, object]] = [
    # opcode, position, a value at the end of its range, one beyond
    (Opcode.ALLOCATE, 5, 0, -1),
    (Opcode.ALLOCATE, 6, bytes(16), bytes(15)),
    (Opcode.ALLOCATE, 7, 1, 0),
    (Opcode.ALLOCATE, 7, SLOTS_MAX, SLOTS_MAX + 1),
    (Opcode.ALLOCATE, 8, 0, -1),
    (Opcode.ALLOCATE, 8, PRIORITIES - 1, PRIORITIES),
    (Opcode.ALLOCATE, 9, 0.0, -0.001),
    (Opcode.ALLOCATE, 9, NEVER, NEVER + 1),
    (Opcode.ALLOCATE, 9, 0.0, float("nan")),
    (Opcode.ALLOCATE, 10, "u" * 200, "u" * 201),
    (Opcode.ALLOCATE, 11, 0, -1),
    (Opcode.ALLOCATE, 12, True, 1),
    (Opcode.ALLOCATE, 13, [TOKEN], [TOKEN[:15]]),
    (Opcode.ALLOCATE, 13, [TOKEN] * SLOTS_MAX, [TOKEN] * (SLOTS_MAX + 1)),
    *(
        (Opcode.RUNNING, at, inside, outside)
        for at in (6, 7)
        for inside, outside in (
            ({"u" * 200: []}, {"u" * 201: []}),
            ({"": [PROVEN] * LISTED_MAX}, {"": [PROVEN] * (LISTED_MAX + 1)}),
            ({"u": [PROVEN]}, {"u": [PROVEN[:-1]]}),
            ({"u": [PROVEN]}, {"u": [PROVEN + b"p"]}),
        )
    ),
    (Opcode.COUNT, 2, {"u": [TOKEN]}, {"u": [TOKEN[:15]]}),
    (Opcode.COUNT, 3, {"u": [TOKEN]}, {"u": [TOKEN[:15]]}),
    (Opcode.COUNT, 5, 0, -1),
    (Opcode.COUNT, 6, [TOKEN], [TOKEN[:15]]),
    (Opcode.SUBSCRIBE, 5, bytes(16), bytes(17)),
    (Opcode.SUBSCRIBE, 6, 0, -1),
    (Opcode.SUBSCRIBE, 7, "u" * 200, "u" * 201),
    (Opcode.ATTEND, 7, "h" * 300, "h" * 301),
    (Opcode.ATTEND, 8, 0, -1),
    (Opcode.ATTEND, 9, 0, -1),
    (Opcode.ATTEND, 10, "offline", "away"),
    (Opcode.ATTEND, 11, 0.0, -0.001),
    (Opcode.ATTEND, 11, 1.0, 1.001),
    (Opcode.ATTEND, 11, 1.0, float("nan")),
    (Opcode.ATTEND, 13, 0, -1),
    (Opcode.ATTEND, 14, "r" * 40, "r" * 41),
    (Opcode.ATTEND, 15, 0, -1),
    (Opcode.ATTEND, 16, b"s" * 4_096, b"s" * 4_097),
    (Opcode.SUSPECT, 5, bytes(16), bytes(17)),
    (Opcode.SUSPECT, 6, [TOKEN] * SLOTS_MAX, [TOKEN] * (SLOTS_MAX + 1)),
    (Opcode.SUSPECT, 6, [TOKEN], [TOKEN[:15]]),
    (Opcode.WORKERS, 5, "online", "fire"),
    *((opcode, 5, bytes(16), bytes(15)) for opcode in (Opcode.RELAY, Opcode.FETCH)),
    *((opcode, 5, bytes(16), bytes(17)) for opcode in (Opcode.RELAY, Opcode.DELIVER)),
    (Opcode.RELAY, 6, 0, -1),
    (Opcode.DELIVER, 6, 0, -1),
    (Opcode.WATCH, 3, "n" * 200, "n" * 201),
    (Opcode.QUERIES, 2, "cancel", "burn"),
    (Opcode.QUERIES, 3, ["", "", "", "", "", "", -1, 0.0, 1], ["", "", "", "", "", "", -1, 0, 0]),
]


@pytest.mark.parametrize(
    ("opcode", "at", "inside", "outside"),
    EDGES,
    ids=[f"{Opcode(opcode).name}-{at}-{index}" for index, (opcode, at, _, _) in enumerate(EDGES)],
)
def test_each_range_at_its_end_and_beyond(
    opcode: int, at: int, inside: object, outside: object
) -> None:
    body = [*WHOLE[opcode]]
    decode = REQUEST_DECODERS[opcode]
    body[at] = inside
    decode(msgpack.encode(body))
    body[at] = outside
    with pytest.raises(ValidationError, match=rf"\$\[{at}\]"):
        decode(msgpack.encode(body))


def test_what_may_be_left_out_has_its_default() -> None:
    asked = REQUEST_DECODERS[Opcode.ALLOCATE](msgpack.encode([*PARTITION, 0, TOKEN]))
    assert isinstance(asked, Allocate)
    assert (asked.slots, asked.priority, asked.waited, asked.user, asked.hops) == (1, 2, 0, "", 0)
    assert not asked.do_not_queue
    assert asked.permits == []
    subscribed = REQUEST_DECODERS[Opcode.SUBSCRIBE](msgpack.encode([*PARTITION, TOKEN]))
    assert isinstance(subscribed, Subscribe)
    assert (subscribed.version, subscribed.user) == (0, "")


def test_who_does_not_know_the_newer_fields_is_understood_and_understands() -> None:
    assert decode_answer(Opcode.ALLOCATE, msgpack.encode([[], None])) == Allocated([])
    assert decode_answer(Opcode.ATTEND, msgpack.encode(["offline", None])) == Attended("offline")
    assert decode_query_end(msgpack.encode([DONE, b""])).load is None
    roster = decode_answer(Opcode.SUBSCRIBE, msgpack.encode([7, "adaptive", []]))
    assert roster == Roster(7, "adaptive", [], SheddingTerms())


def test_gateways_shed_as_the_settings_say_unless_they_are_told() -> None:
    wanted = settings.Shedding()
    assert {one.name: one.default for one in fields(SheddingTerms)} == {
        name: getattr(wanted, name) for name in wanted.__struct_fields__
    }


# The link to a worker

LINK: list[tuple[Any, Any, type[Struct]]] = [
    (encode_hello, decode_hello, Hello),
    (encode_greeting, decode_greeting, Greeting),
    (encode_proof, decode_proof, Proof),
    (encode_run, decode_run, RunQuery),
    (encode_query_end, decode_query_end, QueryEnd),
    (encode_load, decode_load, Load),
]
LINKED = [kind.__name__.lower() for *_, kind in LINK]


@pytest.mark.parametrize(("encode", "decode", "kind"), LINK, ids=LINKED)
@given(data=st.data())
def test_what_is_said_to_a_worker_both_ways(
    encode: Any,  # noqa: ANN401
    decode: Any,  # noqa: ANN401
    kind: type[Struct],
    data: st.DataObject,
) -> None:
    said = data.draw(values(kind))
    assert decode(encode(said)) == said


@pytest.mark.parametrize(("encode", "decode", "kind"), LINK, ids=LINKED)
def test_what_is_no_message_is_refused(encode: Any, decode: Any, kind: type[Struct]) -> None:  # noqa: ANN401
    assert callable(encode)
    for body in (b"", b"\xc1", b"\x80", b"\xa1x", msgpack.encode([None] * len(fields(kind)))):
        with pytest.raises(DecodeError):
            decode(body)


def test_the_ends_of_ranges_on_the_link() -> None:
    message = [TOKEN, 1, 0, 0, b""]
    decode_run(msgpack.encode(message))
    for at, wrong in ((0, bytes(15)), (1, -1), (2, -1), (3, -1), (4, "text")):
        with pytest.raises(ValidationError, match=rf"\$\[{at}\]"):
            decode_run(msgpack.encode([*message[:at], wrong, *message[at + 1 :]]))
    for how in (DONE - 1, STOPPED + 1):
        with pytest.raises(ValidationError):
            decode_query_end(msgpack.encode([how, b""]))
    assert decode_hello(msgpack.encode([TOKEN])).version == QUERY_LINK_VERSION == 2
    assert CREDIT.pack(2**32 - 1) == b"\xff" * 4
