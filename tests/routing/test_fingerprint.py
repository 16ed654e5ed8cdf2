from __future__ import annotations

import subprocess
import sys

import farmhash
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.routing import fingerprint32
from maitred.routing.fingerprint import fingerprint32_in_python


@given(st.binary(max_size=300))
def test_python_and_c_agree(data: bytes) -> None:
    assert fingerprint32_in_python(data) == farmhash.fingerprint32(data)


@pytest.mark.parametrize("size", range(130))
def test_python_and_c_agree_at_every_length(size: int) -> None:
    # Each length class takes another path; high bytes show sign extension.
    for data in (bytes(range(size)), b"\xff" * size, bytes(200 + i % 56 for i in range(size))):
        assert fingerprint32_in_python(data) == farmhash.fingerprint32(data)


@given(st.text(max_size=60))
def test_text_is_hashed_as_utf_8(text: str) -> None:
    assert fingerprint32(text) == fingerprint32(text.encode()) == fingerprint32_in_python(text)


def test_the_c_library_is_used_where_it_is_installed() -> None:
    assert fingerprint32 is farmhash.fingerprint32


def test_routes_are_the_same_without_the_c_library() -> None:
    """In a fresh process where farmhash can't be imported, as on a Python it has no wheel for."""
    program = (
        "import sys; {}\n"
        "from maitred.routing import HashRing, QueueId, routes\n"
        "ring = HashRing([f'10.0.0.{{i}}:7233' for i in range(5)])\n"
        "ring.remove('10.0.0.3:7233')\n"
        "print(routes(ring, QueueId('ns', 'queue', 1), 40, batch_size=8, placement='steady'))\n"
        "print(ring.checksum(), sys.modules.get('farmhash') is not None)\n"
    )
    with_library, without = (
        subprocess.run(
            [sys.executable, "-c", program.format(blocked)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.rsplit(" ", 1)
        for blocked in ("", "sys.modules['farmhash'] = None")
    )
    assert with_library[0] == without[0]
    assert (with_library[1], without[1]) == ("True\n", "False\n")
