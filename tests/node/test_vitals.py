"""What a shard tells of its process."""

from __future__ import annotations

import os

import pytest

from maitred.node.vitals import LagGauge, LoadGauge, Vitals


def test_this_process() -> None:
    vitals = Vitals.real()
    assert vitals.pid == os.getpid()
    kept = bytearray(b"x") * (64 * 2**20)
    assert vitals.memory_bytes() > len(kept)
    before = vitals.cpu_seconds()
    sum(range(200_000))
    assert vitals.cpu_seconds() > before


def test_load_follows_the_last_looks() -> None:
    cpu = 0.0
    gauge = LoadGauge(Vitals(1, lambda: 0, lambda: cpu), now=100.0)
    for second in range(1, 20):
        cpu += 0.5
        gauge.look(100.0 + second, count=second * 10)
    assert gauge.load == pytest.approx(0.5, abs=0.001)
    assert gauge.per_second == pytest.approx(10, abs=0.01)
    gauge.look(120.0, count=190)  # nothing happened: half of it is forgotten
    assert gauge.load == pytest.approx(0.25, abs=0.001)
    assert gauge.per_second == pytest.approx(5, abs=0.01)


def test_two_looks_at_once_change_nothing() -> None:
    gauge = LoadGauge(Vitals.none(), now=5.0)
    gauge.look(5.0, count=1000)
    gauge.look(4.0, count=1000)
    assert (gauge.load, gauge.per_second) == (0.0, 0.0)


def test_a_late_loop_is_told_for_some_seconds() -> None:
    gauge = LagGauge()
    gauge.look(0.5)
    assert gauge.seconds == 0.5
    gauge.look(0.001)
    assert gauge.seconds == pytest.approx(0.4)
    for _ in range(20):
        gauge.look(0.001)
    assert 0.001 <= gauge.seconds < 0.01
    gauge.look(-1.0)
    assert gauge.seconds >= 0.0


def test_the_worst_lag_is_told_once() -> None:
    gauge = LagGauge()
    for late in (0.01, 0.3, 0.02):
        gauge.look(late)
    assert gauge.take_worst() == 0.3
    gauge.look(0.04)
    assert gauge.take_worst() == 0.04
    assert gauge.take_worst() == 0.0
