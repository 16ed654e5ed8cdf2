"""The text of a query is shown only where it is known that its handlers hide nothing."""

from __future__ import annotations

import pytest

from maitred.matching.signatures import FURTHER, SIGNATURES_MAX
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.private_data import HIDDEN_TEXT, without_hidden
from tests.node.querying import row

OPEN = encode_shape(HandlerShape("ask", [("text", "str", True)]))
HIDING = encode_shape(HandlerShape("ask", [("text", "str", True)], ["text"]))
MANY = [
    encode_shape(HandlerShape(f"ask{number}", [("text", "str", True)]))
    for number in range(SIGNATURES_MAX)
]
LATER = b"\x81\xa4form\x02"


@pytest.mark.parametrize(
    ("announced", "is_shown"),
    [
        ([OPEN], True),
        ([OPEN, b""], True),
        ([b""], True),
        ([HIDING], False),
        ([OPEN, HIDING], False),
        ([OPEN, LATER], False),
        ([OPEN, FURTHER], False),
        (MANY, True),
        ([*MANY[:-2], b""], True),
        # A root of the release before wrote this, for these and any number of others.
        ([*MANY[:-1], b""], False),
        ([*MANY, b""], False),
        ([], False),
        (None, False),
    ],
)
def test_a_text_is_shown_if_no_handler_may_hide_it(
    announced: list[bytes] | None, is_shown: bool
) -> None:
    (shown,) = without_hidden([row(1)], {("n", "q"): announced})
    assert shown.query == ("select" if is_shown else HIDDEN_TEXT)
