"""The ring against uhashring, and against itself: `python -m benchmarks.ring`."""

from __future__ import annotations

import uhashring

from benchmarks.measuring import Result, alternately, report
from maitred.routing import HashRing

HOSTS = [f"10.0.{i // 250}.{i % 250 + 1}:7233" for i in range(1_000)]
KEYS = [f"namespace-{i % 7}:queue-{i}:1" for i in range(2_000)]


def measure() -> list[Result]:
    ring = HashRing(HOSTS)
    peer = uhashring.HashRing(HOSTS)

    def ours_one() -> None:
        for key in KEYS:
            ring.lookup(key)

    def ours_three() -> None:
        for key in KEYS:
            ring.lookup_n(key, 3)

    def peer_one() -> None:
        for key in KEYS:
            peer.get_node(key)

    one, three, other = (
        seconds / len(KEYS) for seconds in alternately(ours_one, ours_three, peer_one)
    )

    def build() -> None:
        HashRing(HOSTS)

    def add() -> None:
        # Ten hosts join one by one, and leave again outside the measured call below.
        for number in range(10):
            ring.add(f"newcomer-{number}:7233")

    def leave() -> None:
        for number in range(10):
            ring.remove(f"newcomer-{number}:7233")

    built, added, left = alternately(build, add, leave, rounds=8)
    return [
        Result(
            "ring lookup, times faster than uhashring's get_node (1,000 hosts)",
            other / one,
            4,
            at_least=True,
            ours=f"ours {one * 1e9:.0f} ns",
            peer=f"uhashring {other * 1e9:.0f} ns",
        ),
        Result(
            "lookup_n(3), times a single lookup (1,000 hosts)",
            three / one,
            5,
            at_least=False,
            ours=f"three {three * 1e9:.0f} ns",
            peer=f"one {one * 1e9:.0f} ns",
        ),
        Result(
            "adding a host to 1,000, times faster than building the ring",
            built / (added / 10),
            20,
            at_least=True,
            ours=f"add {added / 10 * 1e3:.2f} ms, remove {left / 10 * 1e3:.2f} ms",
            peer=f"build {built * 1e3:.0f} ms",
        ),
    ]


if __name__ == "__main__":
    report("ring", measure())
