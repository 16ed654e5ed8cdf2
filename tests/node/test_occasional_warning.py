"""A warning that callers provoke is logged once a second, and says how many were left out."""

from __future__ import annotations

from maitred.logs import QUIET_SECONDS, OccasionalWarning
from tests.node.in_process import RecordedLog


def test_a_flood_is_one_line_a_second_and_none_is_forgotten() -> None:
    log = RecordedLog()
    warning = OccasionalWarning(log, "refused")
    for number in range(100):
        warning.say(0.5 + number / 1000, user=f"user {number}")
    assert log.lines == [("warning", "refused", {"user": "user 0"})]
    warning.say(0.5 + QUIET_SECONDS, user="another")
    warning.say(9.0, user="later")
    assert log.lines[1:] == [
        ("warning", "refused", {"user": "another", "unlogged": 99}),
        ("warning", "refused", {"user": "later"}),
    ]
