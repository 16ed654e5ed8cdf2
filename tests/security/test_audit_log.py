"""The audit log: what a record says, how many there are, and what becomes of the files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from maitred.security import audit_log as module
from maitred.security.audit_log import AuditFile, AuditLog, audit_log
from maitred.security.audit_records import (
    TEXT_LETTERS,
    AuditBound,
    encode_record,
    query_fields,
    user_changes,
)
from maitred.settings import Audit, Node, QueryLimits, User
from tests.node.in_process import RecordedLog, in_a_loop, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def hashed(name: str) -> str:
    return f"{name}-hash"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_to(directory: Path, **settings: Any) -> tuple[AuditLog, RecordedLog]:  # noqa: ANN401
    audit, said = Audit(**settings), RecordedLog()
    file = AuditFile(directory / "audit", "shard-0", audit.file_bytes, audit.files)
    return AuditLog(audit, file, said, lambda: 1.5), said


@in_a_loop
async def test_a_record_says_who_did_what_to_what_from_where_and_whether_that_was_allowed(
    tmp_path: Path,
) -> None:
    audit, _ = log_to(tmp_path)
    audit.record("resize", user="ann", source="10.0.0.1:5", target="n/q", details={"read": 2})
    audit.record("login", user="eve\x1b[2J", allowed=False, details={"reason": "x" * 10_000})
    await audit.close()
    path = tmp_path / "audit" / "shard-0.jsonl"
    first, second = lines(path)
    assert first == {
        "at": "1970-01-01T00:00:01.500Z",
        "action": "resize",
        "allowed": True,
        "user": "ann",
        "from": "10.0.0.1:5",
        "target": "n/q",
        "read": 2,
    }
    assert (second["allowed"], len(second["reason"])) == (False, 4_096)
    assert path.read_bytes().isascii()
    assert b"\x1b" not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert audit.counts["written"] == 2


@in_a_loop
async def test_a_file_that_is_full_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    audit, _ = log_to(tmp_path, file_bytes=4_096, files=3, records_per_second=10_000)
    for number in range(200):
        audit.record("resize", target="q" * 100, details={"number": number})
        await until(lambda: audit._writing is None)
    await audit.close()
    files = sorted((tmp_path / "audit").iterdir())
    assert [file.name for file in files] == [
        "shard-0.1.jsonl",
        "shard-0.2.jsonl",
        "shard-0.jsonl",
    ]
    assert all(file.stat().st_size <= 4_096 for file in files)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    kept = [one["number"] for file in (files[1], files[0], files[2]) for one in lines(file)]
    assert kept == list(range(kept[0], 200))
    # The next process goes on where this one stopped.
    again, _ = log_to(tmp_path, file_bytes=4_096, files=3)
    again.record("resize", details={"number": 200})
    await again.close()
    assert lines(files[2])[-1]["number"] == 200


@in_a_loop
async def test_what_strangers_cause_is_bounded_and_keeps_nothing_else_out(tmp_path: Path) -> None:
    audit, _ = log_to(tmp_path, records_per_second=5)
    audit._loop = asyncio.get_running_loop()
    for _ in range(1_000):
        audit.record("login", user="eve", allowed=False)
    for _ in range(100):
        audit.record("query", kind="query")
    audit.record("resize", user="ann")
    await audit.close()
    found = lines(tmp_path / "audit" / "shard-0.jsonl")
    assert [one["action"] for one in found if one.get("user") == "ann"] == ["resize"]
    dropped = [one for one in found if one["action"] == "records dropped"]
    told = sum(sum(one["dropped"].values()) for one in dropped)
    written = sum(one["action"] in ("login", "query") for one in found)
    assert told + written == 1_100
    assert told == audit.counts["dropped"] > 1_000


@in_a_loop
async def test_a_full_disk_stops_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "PENDING_MAX", 5)
    audit, said = log_to(tmp_path)
    full = True

    def write(file: int, data: memoryview) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    real = os.write
    monkeypatch.setattr(os, "write", write)
    audit.record("resize", details={"number": 0})
    await until(lambda: audit.counts["failed"] > 2)
    for number in range(1, 20):
        audit.record("resize", details={"number": number})
    assert said.events("error") == ["the audit log cannot be written"]
    full = False
    await until(lambda: audit.counts["written"] >= 5)
    audit.record("resize", details={"number": 20})
    await audit.close()
    found = lines(tmp_path / "audit" / "shard-0.jsonl")
    assert [one["number"] for one in found if "number" in one] == [0, 1, 2, 3, 4, 20]
    assert [one.get("dropped") for one in found if "number" not in one] == [{"action": 15}]
    assert audit.counts["dropped"] == 15


@in_a_loop
async def test_when_there_is_one(tmp_path: Path) -> None:
    user = {"ann": User(secret=hashed("s"), permissions={})}
    for when, users, wanted in (
        ("users", {}, False),
        ("users", user, True),
        ("always", {}, True),
        ("never", user, False),
    ):
        settings = Node(data=str(tmp_path), users=users, audit=Audit(when=when))  # type: ignore[arg-type]
        made = audit_log(settings, "shard-0", RecordedLog(), lambda: 0.0)
        assert (made is not None) == wanted


def test_what_changed_of_the_users() -> None:
    before = {
        "ann": User(secret=hashed("old"), permissions={"n": ["query"]}),
        "bob": User(secret=hashed("bobs"), permissions={}),
        "eve": User(secret=hashed("eves"), permissions={}, queries=QueryLimits(concurrent=1)),
    }
    after = {
        "ann": User(secret=hashed("new"), permissions={"n": ["query"], "*": ["admin"]}),
        "eve": User(secret=hashed("eves"), permissions={}, queries=QueryLimits(concurrent=2)),
        "new": User(secret=hashed("news"), permissions={"n": ["work"]}),
    }
    changes = dict(user_changes(before, after))
    assert changes["ann"] == {
        "change": "changed",
        "parts": ["secret", "permissions"],
        "permissions": {"n": ["query"], "*": ["admin"]},
        "permissions_before": {"n": ["query"]},
    }
    assert changes["bob"] == {"change": "removed"}
    assert changes["eve"] == {"change": "changed", "parts": ["queries"]}
    assert changes["new"] == {"change": "added", "permissions": {"n": ["work"]}}
    assert "hash" not in repr(changes)
    assert user_changes(after, after) == []


def test_what_is_told_of_a_query() -> None:
    assert query_fields("text", b"select 1 \xff") == {"query": "select 1 \\xff"}
    (digest,) = query_fields("hash", b"select 1").values()
    assert len(digest) == 64
    assert "select" not in digest


@given(
    st.binary(max_size=8),
    st.sampled_from([b"x", b"\xff", "\u00e4".encode(), "\u20ac".encode(), "\U0001f600".encode()]),
)
def test_the_text_of_a_long_query_is_its_beginning(first: bytes, letter: bytes) -> None:
    payload = first + letter * 2 * TEXT_LETTERS
    whole = payload.decode("utf-8", "backslashreplace")
    assert query_fields("text", payload) == {"query": whole[:TEXT_LETTERS]}


@given(st.lists(st.floats(0, 0.5), max_size=200), st.integers(1, 20))
def test_never_more_than_the_bound_in_any_second(pauses: list[float], per_second: int) -> None:
    bound = AuditBound(per_second)
    now, passed = 0.0, []
    for pause in pauses:
        now += pause
        if bound.allows("action", now):
            passed.append(now)
    for start in passed:
        # A second's worth may have been left from before.
        assert sum(start <= one < start + 1 for one in passed) <= 2 * per_second
    assert sum(bound.told().values()) == len(pauses) - len(passed)


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text() | st.integers()))
def test_one_line_whatever_is_told(action: str, fields: dict[str, Any]) -> None:
    line = encode_record(0.0, action, fields, allowed=True)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["at"]
