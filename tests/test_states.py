from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InternalError
from maitred.states import StateTable


class Light(Enum):
    RED = 1
    RED_AND_YELLOW = 2
    GREEN = 3
    OFF = 4


LIGHT = StateTable[Light, str](
    "light",
    {Light.RED: "switched on"},
    {
        Light.RED: {"wait": Light.RED_AND_YELLOW, "fault": Light.OFF, "cut": Light.OFF},
        Light.RED_AND_YELLOW: {"wait": Light.GREEN},
        Light.GREEN: {"wait": Light.RED, "off": Light.OFF},
        Light.OFF: {},
    },
)


def test_the_lines_of_a_diagram() -> None:
    assert list(LIGHT.mermaid()) == [
        "stateDiagram-v2",
        "    [*] --> red: switched on",
        "    red --> red_and_yellow: wait",
        "    red --> off: fault, cut",
        "    red_and_yellow --> green: wait",
        "    green --> red: wait",
        "    green --> off",
        "    off --> [*]",
    ]


@given(st.sampled_from(Light), st.sampled_from(["wait", "fault", "cut", "off", "other"]))
def test_a_pair_that_is_not_listed_is_an_error(state: Light, event: str) -> None:
    listed = LIGHT.transitions[state]
    if event in listed:
        assert LIGHT.after(state, event) is listed[event]
    else:
        with pytest.raises(InternalError, match=f"got the event {event}"):
            LIGHT.after(state, event)


@pytest.mark.parametrize(
    "transitions",
    [
        {"on": {"press": "off"}},
        {"on": {}, "off": {}},
        {"off": {"press": "on"}},
    ],
    ids=["a state without a row", "a state that is never reached", "a beginning without a row"],
)
def test_a_table_with_a_gap_is_refused(transitions: dict[str, dict[str, str]]) -> None:
    with pytest.raises(InternalError, match="States of a lamp"):
        StateTable("lamp", {"on": ""}, transitions)
