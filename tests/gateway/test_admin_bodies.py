"""Bodies of the admin API: errors name the field, and no misspelt field is ignored."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json, msgpack

from maitred.errors import InvalidArgument
from maitred.gateway.admin.bodies import (
    NoBody,
    PartitionsBody,
    PauseBody,
    PurgeBody,
    SettingsBody,
    TaskActionBody,
    read_body,
)
from maitred.protocol.inspection import CHANGED_MAX

if TYPE_CHECKING:
    from msgspec import Struct

KINDS = (NoBody, PartitionsBody, PauseBody, PurgeBody, SettingsBody, TaskActionBody)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (TaskActionBody, {}, "lacks the field 'action'"),
        (TaskActionBody, {"action": "cancl"}, "no action called 'cancl'. Did you mean 'cancel'"),
        (TaskActionBody, {"action": 3}, "The field 'action' of the body does not fit"),
        (TaskActionBody, {"action": "drop", "dryrun": True}, "Did you mean 'dry_run'"),
        (TaskActionBody, {"action": "drop", "state": "ded"}, "no state called 'ded'"),
        (TaskActionBody, {"action": "drop", "ids": []}, "The field 'ids' of the body"),
        (TaskActionBody, {"action": "drop", "ids": ["0/1"] * (CHANGED_MAX + 1)}, "'ids'"),
        (TaskActionBody, {"action": "drop", "filter": {"eror": "x"}}, "field of 'filter'"),
        (TaskActionBody, {"action": "drop", "filter": {"added_after": -1}}, "'filter.added_after'"),
        (
            TaskActionBody,
            {"action": "drop", "filter": {"argument": {"value": 1}}},
            "lacks the field 'name' in 'filter.argument'",
        ),
        (PurgeBody, {"states": ["wating"]}, "no state called 'wating'. Did you mean 'waiting'"),
        (PurgeBody, {"states": ["running"]}, "no state called 'running'"),
        (PurgeBody, {"states": []}, "The field 'states' of the body does not fit"),
        (PurgeBody, {"older_than": "1"}, "The field 'older_than' of the body does not fit"),
        (PartitionsBody, {"read": 2}, "lacks the field 'write'"),
        (PartitionsBody, {"read": 0, "write": 1}, "The field 'read' of the body does not fit"),
        (SettingsBody, {"set": {"rate_per_second": ["fast"]}}, "The field 'set"),
        (PauseBody, {"expect_version": -1}, "The field 'expect_version' of the body"),
        (PauseBody, {"reason": "x" * 10_000}, "The field 'reason' of the body"),
        (NoBody, {"worker": "ant"}, "takes no fields"),
        (PurgeBody, [], "is no object"),
        (PurgeBody, 1, "is no object"),
    ],
)
def test_an_error_says_what_is_wrong(kind: type[Struct], body: object, said: str) -> None:
    for packed in (False, True):
        encoded = msgpack.encode(body) if packed else json.encode(body)
        with pytest.raises(InvalidArgument) as found:
            read_body(kind, encoded, packed=packed)
        assert said in str(found.value)


def test_what_may_be_left_out() -> None:
    assert read_body(PurgeBody, b"", packed=False) == PurgeBody()
    assert read_body(NoBody, b"{}", packed=False) == NoBody()
    counts = read_body(PartitionsBody, b'{"read": 2.0, "write": 1}', packed=False)
    assert (counts.read, counts.write) == (2, 1)
    assert isinstance(counts.read, int)
    wanted = {"argument": {"name": "a", "value": [1]}}
    body = json.encode({"action": "cancel", "state": "running", "filter": wanted})
    read = read_body(TaskActionBody, body, packed=False)
    assert read.filter is not None
    assert read.filter.argument is not None
    assert (read.ids, read.dry_run, read.filter.argument.value) == (None, False, [1])


@given(st.binary(max_size=200), st.sampled_from(KINDS), st.booleans())
def test_no_body_breaks_it(body: bytes, kind: type[Struct], packed: bool) -> None:
    with suppress(InvalidArgument):
        assert isinstance(read_body(kind, body, packed=packed), kind)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_NAMES = st.sampled_from(sorted({name for kind in KINDS for name in kind.__struct_fields__}))


@given(st.dictionaries(_NAMES, _VALUES), st.sampled_from(KINDS))
def test_no_object_breaks_it(body: dict[str, object], kind: type[Struct]) -> None:
    with suppress(InvalidArgument):
        assert isinstance(read_body(kind, json.encode(body), packed=False), kind)
