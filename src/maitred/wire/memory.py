"""Large blocks of memory come from the kernel, page by page, unless the allocator keeps some.

The C library's allocator gives a block beyond 128 KiB back as soon as it is freed, and the next one
is new memory again, with a fault for each page: a stream of large frames spends most of its time on
that, measured at four times slower with rows of 64 KiB. It stops doing so for sizes that it has
seen freed once. So one large block is made and freed, and never touched.

The price is that freed blocks stay in the heap. After a flood `give_back` returns them.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

KEPT_BYTES: Final = 16 * 2**20
"""Blocks up to this are kept, and twice as much at the end of the heap: larger than any frame of a
stream, and little enough to be nobody's problem."""


@cache
def keep_large_blocks() -> None:
    """From now on, in this process; of no effect where the allocator has no such habit. It takes
    2 ms, the first time."""
    bytearray(KEPT_BYTES)


def give_back() -> None:
    """Return the free pages of the heap to the kernel; of no effect without glibc.

    It takes some 2 ms for 100 MiB, during which nothing else runs.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
