"""`maitred up --store`: an address is checked before anything starts, and never shown."""

from __future__ import annotations

import pytest

from tests.cli.running import maitred


@pytest.mark.parametrize("arguments", [("--store", "mysql://me:hush@db"), ("--store=hush",)])
def test_an_address_of_no_store(arguments: tuple[str, ...]) -> None:
    done = maitred("up", *arguments)
    assert done.returncode == 2
    assert "store (from the command line) is not the address of a store. [invalid-setting]" in (
        done.stderr
    )
    assert "hush" not in done.stdout + done.stderr


def test_it_is_given_once() -> None:
    done = maitred("up", "--store", "postgresql://a", "--set", "store=postgresql://b")
    assert done.returncode == 2
    assert "store is given twice" in done.stderr
