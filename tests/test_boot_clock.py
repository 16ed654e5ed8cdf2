"""The clock by which a node trusts its lease."""

from __future__ import annotations

import sys
import time
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from maitred import surroundings


@pytest.mark.parametrize(
    ("machine", "used"),
    [({"CLOCK_BOOTTIME": 7, "CLOCK_MONOTONIC": 1}, 7), ({"CLOCK_MONOTONIC": 1}, 1)],
    ids=["with such a clock", "without"],
)
def test_it_counts_while_the_machine_is_suspended_if_any_does(
    machine: dict[str, int], used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    for name, number in machine.items():
        monkeypatch.setattr(time, name, number, raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda number: 1000.0 + number)
    # A copy of the module: others have imported the one that knows this machine's clock.
    spec = spec_from_file_location("surroundings_copy", surroundings.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copy)
    spec.loader.exec_module(copy)
    assert copy.Surroundings.real().boot_clock() == 1000.0 + used
