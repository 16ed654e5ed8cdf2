"""The bytes of a trace context: what W3C demands of the headers, and what maitred adds to them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.trace_context import (
    NOT_RECORDED,
    STATE_LETTERS,
    TRACE_BYTES_MAX,
    derived_span_id,
    flags_of,
    from_headers,
    in_round,
    is_context,
    is_recorded,
    is_wait_recorded,
    packed,
    round_of,
    span_id_of,
    state_of,
    trace_id_of,
    traceparent,
    waits_recorded,
)

TRACE_IDS = st.integers(1, 2**128 - 1)
SPAN_IDS = st.integers(1, 2**64 - 1)
FLAGS = st.integers(0, 255)
STATES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=STATE_LETTERS)
CONTEXTS = st.builds(packed, TRACE_IDS, SPAN_IDS, FLAGS, STATES)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"


@given(TRACE_IDS, SPAN_IDS, FLAGS, STATES)
def test_a_context_has_what_was_packed(trace: int, span: int, flags: int, state: str) -> None:
    context = packed(trace, span, flags, state)
    assert is_context(context)
    assert trace_id_of(context) == trace
    assert span_id_of(context) == span
    assert flags_of(context) == flags
    assert state_of(context) == state
    assert is_recorded(context) == bool(flags & 1)
    assert len(context) <= TRACE_BYTES_MAX


@given(TRACE_IDS, SPAN_IDS, st.integers(0, 1), STATES)
def test_headers_round_trip(trace: int, span: int, flags: int, state: str) -> None:
    context = packed(trace, span, flags, state.strip())
    assert from_headers(traceparent(context), state_of(context)) == context


@given(CONTEXTS)
def test_traceparent_has_the_form_of_w3c(context: bytes) -> None:
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", traceparent(context))


def test_the_example_of_w3c() -> None:
    context = from_headers(VALID, "congo=t61rcWkgMzE")
    assert f"{trace_id_of(context):032x}" == TRACE
    assert f"{span_id_of(context):016x}" == SPAN
    assert is_recorded(context)
    assert state_of(context) == "congo=t61rcWkgMzE"
    assert from_headers(f"\t {VALID} ", "") == packed(int(TRACE, 16), int(SPAN, 16), 1)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        VALID.upper(),
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"{VALID}-",
        f"{VALID}-what",
        f"{VALID}0",
        f"0-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01what",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}",
        f"{VALID}\n{VALID}",
        f"{VALID},{VALID}",
        VALID.replace("0", "\u0660"),  # digits of another script
    ],
)
def test_a_malformed_header_is_ignored(header: str) -> None:
    assert from_headers(header, "congo=t61rcWkgMzE") == b""


@pytest.mark.parametrize("version", ["01", "cc", "fe"])
@pytest.mark.parametrize("more", ["", "-", "-what-is-later"])
def test_a_header_of_a_later_version_is_read_as_far_as_it_is_known(version: str, more: str) -> None:
    found = from_headers(f"{version}-{TRACE}-{SPAN}-01{more}", "")
    assert found == packed(int(TRACE, 16), int(SPAN, 16), 1)
    assert traceparent(found) == VALID


@given(st.text(), st.text())
def test_no_header_raises(parent: str, state: str) -> None:
    found = from_headers(parent, state)
    assert found == b"" or is_context(found)


@given(st.text(max_size=2 * STATE_LETTERS))
def test_a_tracestate_that_cannot_be_carried_is_dropped_whole(state: str) -> None:
    found = from_headers(VALID, state)
    assert is_context(found)
    assert state_of(found) in {"", state.strip()}


def test_a_tab_between_the_entries_of_a_tracestate_is_a_space() -> None:
    trace = from_headers(f"00-{'1' * 32}-{'2' * 16}-01", "a=1,\tb=2")
    assert state_of(trace) == "a=1, b=2"


def test_only_the_flag_that_is_known_is_taken_from_a_header() -> None:
    assert flags_of(from_headers(f"00-{TRACE}-{SPAN}-ff", "")) == 1
    assert not is_recorded(from_headers(f"00-{TRACE}-{SPAN}-fe", ""))


@given(st.binary(max_size=TRACE_BYTES_MAX + 10))
def test_bytes_of_others_are_harmless(trace: bytes) -> None:
    """A producer may send any bytes; those of a later version are handed on."""
    if not is_context(trace):
        assert not is_recorded(trace)
        assert in_round(trace, 3) == trace
        assert round_of(trace) == 0
    else:
        state_of(trace)
        assert len(traceparent(trace)) == 55


def test_what_is_no_context() -> None:
    context = packed(1, 2, 1)
    assert not is_context(b"")
    assert not is_context(NOT_RECORDED)
    assert not is_context(b"\x02" + context[1:])
    assert not is_context(context + b"x" * STATE_LETTERS + b"x")
    assert not is_context(packed(0, 2, 1))
    assert not is_context(packed(1, 0, 1))


@given(CONTEXTS, st.integers(0, 1_000))
def test_a_round_changes_nothing_else(context: bytes, number: int) -> None:
    found = in_round(context, number)
    assert round_of(found) == number % 256
    assert traceparent(found) == traceparent(context)
    assert state_of(found) == state_of(context)
    assert in_round(found, round_of(context)) == context


@given(CONTEXTS)
def test_a_recorded_wait_is_noted_and_changes_nothing_else(context: bytes) -> None:
    found = waits_recorded(context)
    assert not is_wait_recorded(context)
    assert is_wait_recorded(found)
    assert traceparent(found) == traceparent(context)
    assert derived_span_id(found, "run", "t", 1) == derived_span_id(context, "run", "t", 1)


@given(CONTEXTS, st.text(), st.integers(1, 1_000))
def test_derived_ids_are_valid_and_all_different(context: bytes, item: str, attempt: int) -> None:
    found = {
        derived_span_id(context, what, item, number)
        for what in ("wait", "run")
        for number in (attempt, attempt + 1)
    }
    found.add(derived_span_id(in_round(context, round_of(context) + 1), "run", item, attempt))
    assert len(found) == 5
    assert all(0 < one < 2**64 for one in found)
    assert found.isdisjoint({span_id_of(context)})
