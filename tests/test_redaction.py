"""Hidden values are not in a redacted text, whole, in part or in another form."""

from __future__ import annotations

import base64
import json
import traceback
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maitred.errors import InvalidArgument, UnknownChoice
from maitred.redaction import (
    HIDDEN,
    LETTERS_MAX,
    RUN_LETTERS,
    VALUES_MAX,
    HiddenParameters,
    Redaction,
    hidden_parameters,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    # what msgpack carries
    | st.binary(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3),
    max_leaves=5,
)
wrappers = st.sampled_from(
    [
        str,
        repr,
        ascii,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: quote(text, safe=""),
        quote,
        quote_plus,
        lambda text: repr([text]),
        lambda text: repr({"card": text}),
        str.upper,
    ]
)


def lower(text: str) -> str:
    """In lower case as the redaction compares: letter by letter."""
    return "".join(one.lower() if len(one.lower()) == 1 else one for one in text)


def runs(text: str) -> set[str]:
    """All parts of six characters with a letter or digit."""
    found = {text[at : at + RUN_LETTERS] for at in range(len(text) - RUN_LETTERS + 1)}
    return {run for run in found if any(one.isalnum() for one in run)}


@given(hidden=st.text(min_size=1), before=st.text(), after=st.text(), wrap=wrappers)
@example(hidden="4111111111111111", before="invalid card ", after="!", wrap=repr)
@example(hidden="Zoë's\n€𝄞 key", before="", after="", wrap=json.dumps)
@example(hidden="hidden", before="[", after="]", wrap=str)
def test_no_run_of_a_hidden_text_is_left(hidden: str, before: str, after: str, wrap: Any) -> None:  # noqa: ANN401
    try:
        quoted = wrap(hidden)
    except UnicodeEncodeError:  # half of a surrogate pair, which no argument can have
        return
    shown = Redaction([hidden]).text(f"{before}{quoted}{after}")
    for piece in shown.split(HIDDEN):
        assert runs(lower(hidden)).isdisjoint(runs(lower(piece)))


@given(
    hidden=st.text(st.characters(codec="utf-8"), min_size=RUN_LETTERS),
    start=st.integers(0, 50),
    length=st.integers(RUN_LETTERS, 50),
)
def test_a_part_of_six_letters_is_found_as_well(hidden: str, start: int, length: int) -> None:
    part = hidden[start : start + length]
    shown = Redaction([hidden]).text(f"<{part}>")
    for piece in shown.split(HIDDEN):
        assert runs(lower(part)).isdisjoint(runs(lower(piece)))


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("123", "the code 123 is wrong", "the code [hidden] is wrong"),
        ("123", "order 1234", "order 1234"),
        ("abc", "ABC: 'abc'", "[hidden]: '[hidden]'"),
        (12, "got 12, line 12", "got [hidden], line [hidden]"),
        (41111111, "41,111,111 and 41111111", "[hidden] and [hidden]"),
        (19.99, "19.99 EUR", "[hidden] EUR"),
        (True, "flag=True", "flag=[hidden]"),
        (None, "None of it", "None of it"),
        ("", "nothing to hide", "nothing to hide"),
        ("******", "a ****** b", "a [hidden] b"),
        ("a-b", "xa-by", "x[hidden]y"),
        (b"\x00secret!", r"b'\x00secret!'", "b'[hidden]'"),
        (b"key of mine", base64.b64encode(b"key of mine").decode(), HIDDEN),
        (b"key of mine", b"key of mine".hex(), HIDDEN),
        ({"number": ["4111 1111"]}, "number 4111 1111", "[hidden] [hidden]"),
        (
            datetime(2001, 2, 3, tzinfo=UTC),
            "born 2001-02-03T00:00:00+00:00",
            "born [hidden]",
        ),
    ],
)
def test_what_is_recognised(value: object, text: str, shown: str) -> None:
    assert Redaction([value]).text(text) == shown


@given(
    moment=st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
)
@example(moment=date(1985, 3, 12))
@example(moment=time(9, 5))
@example(moment=datetime(1985, 3, 12))  # noqa: DTZ001 - without a zone, as a date of birth
@example(moment=timedelta(days=12_345, seconds=6_789))
def test_moments_are_recognised_as_the_handler_sees_them(
    moment: date | time | datetime | timedelta,
) -> None:
    """msgpack carries most of them as text, and the handler gets the object."""
    carried = msgspec.msgpack.encode(moment)
    moment = msgspec.msgpack.decode(carried, type=type(moment))
    redaction = Redaction([msgspec.msgpack.decode(carried)])
    arguments = repr(moment).partition("(")[2].removesuffix(")")
    for hidden in (str(moment), arguments.partition(", tzinfo=")[0]):
        for text in (f"it was {moment}", f"it was {moment!r}", f"it was {[moment]}"):
            assert hidden not in redaction.text(text)
            assert runs(hidden).isdisjoint(runs(redaction.text(text).replace(HIDDEN, "")))


def test_the_class_of_a_moment_is_not_hidden() -> None:
    shown = Redaction(["1985-03-12"]).text("born datetime.date(1985, 3, 12), not 1985-03-12")
    assert shown == "born datetime.date([hidden]), not [hidden]"


def test_what_is_computed_from_a_value_is_not_recognised() -> None:
    """As docs/tasks.md says."""
    redaction = Redaction(["4111111111111111"])
    for text in ("ends with 1111", "4111 1111 1111 1111", "1111-1111-1111-1114"):
        assert redaction.text(text) == text


@given(value=plain)
def test_whatever_msgpack_carries_can_be_hidden(value: Any) -> None:  # noqa: ANN401
    redaction = HiddenParameters(("open", "secret"), frozenset({"secret"})).redaction(
        msgspec.msgpack.encode([0, value])
    )
    assert isinstance(redaction.text(f"it is {value!r}"), str)


@given(text=st.text())
def test_a_text_without_hidden_values_is_left_alone(text: str) -> None:
    assert Redaction([]).text(text) == text
    assert Redaction([text + "x" * RUN_LETTERS]).value(5) == 5


def test_values_are_found_by_place_and_by_name() -> None:
    hidden = HiddenParameters(("order", "card", "code"), frozenset({"card"}))
    by_place = msgspec.msgpack.encode([7, "4111111111111111", "open-code"])
    by_name = msgspec.msgpack.encode({"card": "4111111111111111", "code": "open-code"})
    for payload in (by_place, by_name):
        shown = hidden.redaction(payload).text("4111111111111111 with open-code")
        assert shown == "[hidden] with open-code"
    assert hidden.redaction(msgspec.msgpack.encode([7])).text("4111111111111111 7")


def test_short_lines_of_a_value_are_recognised_between_others() -> None:
    """The traceback of a group indents every line."""
    hidden = "12 Elm\nab12\n--\nNY-1\n\nthe last line\n"
    group = ExceptionGroup("all failed", [ValueError(hidden)])
    shown = Redaction([hidden]).text("".join(traceback.format_exception(group)))
    for line in ("12 Elm", "ab12", "NY-1", "the last line"):
        assert line not in shown
    assert "+---------------- 1 ----------------" in shown
    assert "ValueError" in shown


class Unreadable:
    def __repr__(self) -> str:
        return "<key 4111111111111111>"


@pytest.mark.parametrize("default", ["4111111111111111", ["4111111111111111"], Unreadable()])
def test_a_default_is_hidden_in_a_call_that_leaves_it_out(default: object) -> None:
    defaults = {"card": default, "code": "open-code"}
    hidden = hidden_parameters(("order", "card", "code"), ["card"], "charge", defaults)
    assert hidden is not None
    for arguments in ([], [7], {}, {"code": "x"}):
        shown = hidden.redaction(msgspec.msgpack.encode(arguments)).text(f"{default} open-code")
        assert "4111111111111111" not in shown
        assert "open-code" in shown
    given = hidden.redaction(msgspec.msgpack.encode([7, "another card"]))
    assert given.text("another card, not 4111111111111111") == "[hidden], not 4111111111111111"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode(["".join(map(chr, range(256, 256 + 30_000)))]),
        msgspec.msgpack.encode(["x" * (LETTERS_MAX + 1)]),
        msgspec.msgpack.encode([list(range(VALUES_MAX + 1))]),
    ],
)
def test_nothing_is_shown_if_the_values_are_not_known_or_too_large(payload: bytes) -> None:
    redaction = HiddenParameters(("card",), frozenset({"card"})).redaction(payload)
    assert redaction.text("whatever it is") == HIDDEN
    assert redaction.text("") == ""
    assert redaction.value(17) == HIDDEN


def test_values_of_log_lines() -> None:
    redaction = Redaction(["4111111111111111"])
    assert redaction.value(4111111111111111) == HIDDEN
    assert redaction.value(["4111111111111111", 5]) == f"['{HIDDEN}', 5]"
    assert redaction.value("order 5") == "order 5"


def test_a_name_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(UnknownChoice, match="no parameter of charge called 'crad'") as caught:
        hidden_parameters(("order", "card"), ["crad"], "charge")
    assert caught.value.remedy == "Did you mean 'card'?"


@pytest.mark.parametrize("hide", ["card", 5, [5], {"card": 1}, None])
def test_hide_is_a_list_of_names(hide: object) -> None:
    with pytest.raises(InvalidArgument, match="'hide' of charge"):
        hidden_parameters(("card",), hide, "charge")


def test_a_handler_that_hides_nothing_costs_nothing() -> None:
    assert hidden_parameters(("card",), (), "charge") is None
    assert hidden_parameters(("card",), ("card",), "charge") is not None
