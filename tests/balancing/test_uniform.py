from __future__ import annotations

import random
from collections import Counter

from maitred.balancing import Uniform
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)


def test_reads_and_writes_are_spread_evenly() -> None:
    uniform = Uniform(random.Random(1))
    writes = Counter(uniform.write(QUEUE, 8, 0.0) for _ in range(8_000))
    reads = Counter(uniform.read(QUEUE, 8, 0.0).partition for _ in range(8_000))
    # Each count is binomial(8000, 1/8): standard deviation 29.6, so 5 of them are 148.
    for counts in (writes, reads):
        assert set(counts) == set(range(8))
        assert all(abs(count - 1_000) < 148 for count in counts.values())
