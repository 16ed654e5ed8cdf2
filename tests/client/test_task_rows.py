"""Tasks in JSON: all fields by name, whatever the arguments hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec import msgpack
from msgspec.structs import fields

from maitred.client.task_rows import parse_place, place_text, shown_row, task_row
from maitred.errors import InvalidArgument
from maitred.protocol.inspection import HistoryEvent, ListedTask, TaskShown
from tests.client.inspected_queue import FIRST, MAILS, task

ODD = {"n": float("nan"), "raw": b"\x00\xff", "at": datetime(2026, 1, 1, tzinfo=UTC), 3: [()]}


def test_a_row_has_the_fields_by_name() -> None:
    one = task(2, 7, "dead", arguments=msgpack.encode(["a@example.org", 3]), by="ana@10.0.0.7")
    row = task_row(MAILS, one)
    assert row["id"] == f"shop/mails/2/{FIRST + 7}"
    assert (row["namespace"], row["queue"], row["state"]) == ("shop", "mails", "dead")
    assert row["arguments"] == ["a@example.org", 3]
    names = {field.name for field in fields(ListedTask)} - {"at"}
    assert row.keys() == {"id", "namespace", "queue", *names}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (None, None),
        (msgpack.encode(None), None),
        (
            msgpack.encode(ODD),
            {"n": "nan", "raw": "bytes 00ff", "at": "2026-01-01 00:00:00+00:00", "3": [[]]},
        ),
        (b"\xc1", "bytes c1"),
    ],
)
def test_values_that_json_cannot_express_do_not_hide_the_others(
    body: bytes | None, told: object
) -> None:
    one = task(0, 1, "done", arguments=body)
    shown = TaskShown(
        task=one, events=[HistoryEvent(at=1.0, what="added", by="ana")], node="n", result=body
    )
    row = shown_row(MAILS, shown)
    assert row["result"] == told
    assert row["task"] == task_row(MAILS, one)
    assert task_row(MAILS, one)["arguments"] == told
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    (event,) = json.loads(json.dumps(row["events"]))
    assert event["what"] == "added"
    assert event.keys() == {field.name for field in fields(HistoryEvent)}


def test_places() -> None:
    assert parse_place(place_text((3, FIRST))) == (3, FIRST)
    for wrong in ("", "3", "3/", "/3", "3/4/5", "a/3", "-1/3", "3/-1", "+3/4", f"3/{2**63}"):
        with pytest.raises(InvalidArgument, match="no task of a queue"):
            parse_place(wrong)
    for wrong in ("100000/1", "3/" + "9" * 5_000, "³/4"):
        with pytest.raises(InvalidArgument, match="no task of a queue"):
            parse_place(wrong)
