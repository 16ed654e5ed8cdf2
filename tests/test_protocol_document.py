"""What docs/protocol.md tells is so: its tables as messages have it, its session byte by byte."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random
from typing import get_args
from uuid import uuid4

import pytest
from msgspec import Struct, msgpack
from msgspec.structs import FieldInfo, fields

from maitred import errors, logs
from maitred.matching.records import Terms
from maitred.membership.view import ClusterMember
from maitred.node.inspection_requests import LOOKED_AT
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.task_privacy import SEARCHED_BYTES
from maitred.node.task_views import LISTED_ARGUMENT_BYTES
from maitred.protocol.frames import ANSWER, HEADER_BYTES, Opcode
from maitred.protocol.inspection import (
    CHANGED_MAX,
    LISTED_MAX,
    ArgumentFilter,
    EventKind,
    HistoryEvent,
    ListedState,
    ListedTask,
    ListTasks,
    TaskAction,
    TaskFilter,
    TaskState,
    Withheld,
)
from maitred.protocol.messages import ANSWERS, REQUESTS
from maitred.protocol.notation import Reader
from maitred.protocol.queries import (
    Allocation,
    Member,
    Order,
    Pass,
    QueryFilter,
    QueryRow,
    SheddingTerms,
    WorkerRow,
)
from maitred.protocol.query_link import Greeting, Hello, Load, Proof, QueryEnd, RunQuery
from maitred.protocol.refusals import encode_error
from maitred.protocol.requests import PartitionRequest, ShardRequest
from maitred.protocol.shared_offers import SetMember
from maitred.protocol.tasks import (
    REASON_CHARACTERS,
    Counts,
    DeadLetter,
    End,
    Failure,
    Given,
    PartitionDescription,
    Reserved,
)
from maitred.settings import Node
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.store.interface import SIGNING_KEY_BYTES
from maitred.surroundings import Surroundings

DOCUMENT = Path(__file__).parent.parent / "docs" / "protocol.md"
SECONDS = 10


def session() -> list[tuple[str, bytes | None]]:
    """What is said in which direction; None for bytes that the page leaves open."""
    text = DOCUMENT.read_text()
    block = re.search(r"```text\n(-> .*?)```", text, re.DOTALL)
    assert block
    said: list[tuple[str, str]] = []
    for line in block[1].splitlines():
        # The hexadecimal part ends where two spaces begin the remark.
        direction, rest = line[:2].strip(), line[2:].strip()
        digits = re.split(r"\s{2,}", rest)[0]
        if direction:
            said.append((direction, digits))
        else:
            said[-1] = (said[-1][0], said[-1][1] + digits)
    return [
        (direction, None if "…" in digits else bytes.fromhex(digits)) for direction, digits in said
    ]


async def replay() -> int:
    settings = Node()
    loop = asyncio.get_running_loop()
    # A port that is free now; the shard binds it again at once.
    probe = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    place = ShardPlace(uuid4(), 0, 1, "127.0.0.1", port, (port,), ())
    shard = Shard(place, settings, Surroundings.real(), logs.silent())
    disk = SimulatedDisk(Random(1))
    disk.contents._signing_key = bytes(range(SIGNING_KEY_BYTES))  # the page has its proof
    shard.keep_tasks(SimulatedStore(disk))
    await shard.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = 0
    for direction, expected in session():
        if direction == "->":
            assert expected is not None
            writer.write(expected)
            continue
        header = await reader.readexactly(HEADER_BYTES)
        answer = header + await reader.readexactly(int.from_bytes(header[5:], "big"))
        assert expected is None or answer == expected
        answers += 1
    writer.close()
    await writer.wait_closed()
    shard.close()
    return answers


def test_the_session_of_the_page() -> None:
    answers = asyncio.run(asyncio.wait_for(replay(), SECONDS))
    assert answers == 7


def rows(opcode: int) -> list[list[str]]:
    """The cells of the rows that begin with that opcode."""
    lines = DOCUMENT.read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(f"| `0x{opcode:02X}` |")
    ]


def listed(found: tuple[FieldInfo, ...]) -> str:
    return ", ".join(one.name if one.required else f"[{one.name}]" for one in found)


@pytest.mark.parametrize("opcode", REQUESTS, ids=lambda opcode: Opcode(opcode).name)
def test_every_request_has_a_row(opcode: int) -> None:
    assert len(rows(opcode)) == 1


@pytest.mark.parametrize(
    "opcode", [one for one in REQUESTS if one >= Opcode.ADD], ids=lambda one: Opcode(one).name
)
def test_the_row_of_a_request_about_tasks(opcode: int) -> None:
    kind, answer = REQUESTS[opcode], ANSWERS[opcode]
    ((_, name, who, told, answered),) = rows(opcode)
    assert name == Opcode(opcode).name
    base = PartitionRequest if issubclass(kind, PartitionRequest) else ShardRequest
    everywhere = "" if base is PartitionRequest else " anywhere" if kind.anywhere else " for `*`"
    permitted = f"`{kind.permission}`{everywhere}" if kind.permission else "any login"
    assert who == ("shards only" if kind.between_shards else permitted)
    assert told == listed(fields(kind)[len(fields(base)) :])
    is_array = answer.__struct_config__.array_like
    told = listed(fields(answer)) if is_array else "a map"
    assert answered == f"`0x{opcode + ANSWER:02X}`: {told}".rstrip()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("counts", Counts),
        ("terms", Terms),
        ("task", Given),
        ("set member", SetMember),
        ("end", End),
        ("failure", Failure),
        ("task filter", TaskFilter),
        ("argument filter", ArgumentFilter),
        ("reservation", Reserved),
        ("allocation", Allocation),
        ("member", Member),
        ("shedding", SheddingTerms),
        ("pass", Pass),
        ("load", Load),
        ("order", Order),
        ("filter", QueryFilter),
        ("cluster member", ClusterMember),
    ],
)
def test_what_stands_inside_of_fields(name: str, kind: type[Struct]) -> None:
    (line,) = re.findall(rf"^\| \*{name}\*[^|]*\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    told = [element.split(" = ") for element in re.sub(r"[\[\]]", "", line).split(", ")]
    elements = [(one[0], one[1] if len(one) > 1 else None) for one in told if one[0] != "encoded"]
    assert elements == [
        (one.name, None if one.required else _shown(one.default)) for one in fields(kind)
    ]
    for one in fields(kind):
        assert (f"[{one.name} =" in line) == (not one.required)


def _shown(default: object) -> str:
    if default is None or default == msgpack.encode(None):
        return "nil"
    return '""' if default == "" else str(default)


@pytest.mark.parametrize(
    "kind",
    [PartitionDescription, DeadLetter, ListedTask, HistoryEvent, WorkerRow, QueryRow],
)
def test_every_key_of_a_map_is_named(kind: type[Struct]) -> None:
    text = DOCUMENT.read_text()
    section = text[text.index("### Administration") : text.index("## Events")]
    for one in fields(kind):
        assert f"`{one.name}`" in section


@pytest.mark.parametrize("words", [ListedState, TaskState, EventKind, TaskAction, Withheld])
def test_every_word_about_a_single_task_is_named(words: object) -> None:
    text = DOCUMENT.read_text()
    section = text[text.index("### Single tasks") : text.index("## Queries")]
    for word in filter(None, get_args(words)):
        assert f"`{word}`" in section


def test_limits_of_requests_about_single_tasks() -> None:
    text = DOCUMENT.read_text()
    section = text[text.index("### Single tasks") : text.index("## Queries")]
    default = next(one.default for one in fields(ListTasks) if one.name == "most")
    assert f"at most `most` tasks (1 to {LISTED_MAX:,}, default {default})" in section
    assert f"to 1 to {CHANGED_MAX:,} tasks" in section
    assert f"about {LOOKED_AT:,} tasks" in section
    assert f"more than {LISTED_ARGUMENT_BYTES:,} bytes" in section
    assert f"at most {REASON_CHARACTERS} characters" in section
    assert f"the {SEARCHED_BYTES // 1024} KiB that are searched" in section


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        (Opcode.HELLO, Hello),
        (Opcode.HELLO + ANSWER, Greeting),
        (Opcode.PROVE, Proof),
        (Opcode.RUN, RunQuery),
        (Opcode.RUN + ANSWER, QueryEnd),
        (Opcode.LOAD + ANSWER, Load),
    ],
)
def test_what_is_said_on_the_link_to_a_worker(opcode: int, kind: type[Struct]) -> None:
    ((*_, told),) = rows(opcode)
    assert told.split(":")[0] == listed(fields(kind))


def test_the_details_of_an_error_are_what_is_sent() -> None:
    text = DOCUMENT.read_text()
    part = text[text.index("## Errors") : text.index("## A session")]
    named = re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE)
    full = errors.AtCapacity("Full.", remedy="Wait.", retry_after=1.0, limit=2)
    reader = Reader(encode_error(full))
    reader.integer()
    reader.string()
    assert list(reader.string_map()) == named
