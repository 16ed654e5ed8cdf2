"""Keeps the C library from returning large blocks of memory to the kernel again and again.

glibc's allocator returns a block beyond 128 KiB as soon as it is freed, and the next one is new
memory again, with a fault for each page: a stream of large frames spends most of its time on that,
measured at four times slower with rows of 64 KiB. The allocator stops doing so for sizes that it
has seen freed once. So one large block is allocated and freed, and never touched.

The price is that freed blocks stay in the heap. `give_back` returns them after a flood.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

KEPT_BYTES: Final = 16 * 2**20
"""Blocks up to this size are kept, and twice as much at the end of the heap: larger than any frame
of a stream, and too little to matter on any machine."""


@cache
def keep_large_blocks() -> None:
    """Keep freed large blocks in this process from now on; without effect on other allocators. It
    takes 2 ms, the first time."""
    bytearray(KEPT_BYTES)


def give_back() -> None:
    """Return the free pages of the heap to the kernel; without effect unless the library is glibc.

    It takes some 2 ms for 100 MiB, during which nothing else runs.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
