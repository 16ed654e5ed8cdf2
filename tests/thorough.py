"""How many seeds and sizes the tests of models try.

`make test` tries the first few of each list: enough to fail when a decision is wrong.
`make studies` sets `MAITRED_THOROUGH`, and tries all of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

THOROUGH = "MAITRED_THOROUGH" in os.environ

Case = TypeVar("Case")


def first(count: int, cases: Sequence[Case]) -> Sequence[Case]:
    """Return the first `count` cases for `make test`, and all of them for `make studies`."""
    return cases if THOROUGH else cases[:count]
