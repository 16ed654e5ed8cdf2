"""Which signals count: the first stops a process, a second one forces it."""

from __future__ import annotations

import signal

from maitred.surroundings import ECHO_SECONDS, StopSignals


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    """As from `timeout 4 maitred up`, which sends it to the command and to its group."""
    signals = StopSignals()
    assert signals.count(signal.SIGTERM, 100.0) == 1
    assert signals.count(signal.SIGTERM, 100.0) == 0
    assert signals.count(signal.SIGTERM, 100.0 + ECHO_SECONDS / 2) == 0
    assert signals.counted == [signal.SIGTERM]


def test_who_insists_is_heard() -> None:
    signals = StopSignals()
    assert signals.count(signal.SIGINT, 100.0) == 1
    assert signals.count(signal.SIGINT, 101.0) == 2
    assert signals.count(signal.SIGINT, 101.0) == 3


def test_another_signal_is_no_echo() -> None:
    signals = StopSignals()
    assert signals.count(signal.SIGINT, 100.0) == 1
    assert signals.count(signal.SIGTERM, 100.0) == 2
    assert signals.counted == [signal.SIGINT, signal.SIGTERM]
