"""The text of a query is shown only where it is known that its handlers hide nothing."""

from __future__ import annotations

import pytest

from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.private_data import HIDDEN_TEXT, without_hidden
from maitred.protocol.queries import QueryRow

OPEN = encode_shape(HandlerShape("ask", [("text", "str", True)]))
HIDING = encode_shape(HandlerShape("ask", [("text", "str", True)], ["text"]))
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
        ([], False),
        (None, False),
    ],
)
def test_a_text_is_shown_if_no_handler_may_hide_it(
    announced: list[bytes] | None, is_shown: bool
) -> None:
    row = QueryRow(**{**BLANK, "namespace": "n", "queue": "q", "query": "select 1"})
    (shown,) = without_hidden([row], {("n", "q"): announced})
    assert shown.query == ("select 1" if is_shown else HIDDEN_TEXT)


BLANK = {
    name: 0 if name in {"sequence", "priority", "attempts", "bytes_in", "bytes_out"} else ""
    for name in QueryRow.__struct_fields__
}
