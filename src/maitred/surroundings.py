"""What code may ask of the world besides its event loop: the wall clock, and randomness.

Monotonic time, timers and the network come from the running loop. These two a loop has not, so
they are handed in; everything that takes a `Surroundings` runs unchanged under real asyncio and in
the simulation, where both are seeded.

Secrets are a third thing: what nobody may guess comes from the operating system, and in the
simulation from the seed.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a loop has not."""

    wall_clock: Callable[[], float]
    """Seconds since 1970; may jump, in either direction."""

    random: random.Random
    """For jitter, sampling and tie-breaking; never for secrets."""

    secret: Callable[[int], bytes] = os.urandom
    """So many bytes that nobody can guess."""

    @classmethod
    def real(cls) -> Surroundings:
        """The machine's clock, and randomness seeded by the operating system."""
        return cls(wall_clock=time.time, random=random.Random())
