"""Token and shard of a key against scylla-driver's functions: `python -m benchmarks.tokens`.

The driver has two ways to a shard: `_ShardingInfo`, which its connections use, and `ShardingInfo`
in C, which it exports. Our keys are ASCII (names mostly are). Keys of arbitrary bytes, where
Cassandra's murmur3 differs from everybody else's, are shown beside them. Each line says whether our
side ran in C or, where that was not built, in Python.
"""

from __future__ import annotations

from random import Random
from typing import Any

from cassandra.murmur3 import murmur3
from cassandra.shard_info import ShardingInfo, _ShardingInfo

from benchmarks.measuring import Result, alternately, report
from maitred.routing import sharding
from maitred.routing.tokens import token, token_in_python

KEY_BYTES = 40
SHARDS = 8
IGNORE_MSB = 12
OURS = "ours in Python" if token is token_in_python else "ours in C"


def measure() -> list[Result]:
    random = Random(1)
    ascii_keys = [f"namespace:/_sys/a-queue-{i:011}/17:1".encode() for i in range(2_000)]
    any_keys = [random.randbytes(KEY_BYTES) for _ in range(2_000)]
    assert all(len(key) == KEY_BYTES for key in ascii_keys)
    used = _ShardingInfo("0", str(SHARDS), "", "", str(IGNORE_MSB), None, None)
    exported = ShardingInfo("0", str(SHARDS), "", "", str(IGNORE_MSB), None, None)
    return [
        _compare(ascii_keys, "ASCII keys", used, "as the driver's connections do it"),
        _compare(ascii_keys, "ASCII keys", exported, "the driver's functions in C"),
        _compare(any_keys, "any bytes", used, "as the driver's connections do it"),
        _compare(any_keys, "any bytes", exported, "the driver's functions in C"),
    ]


def _compare(
    keys: list[bytes],
    which: str,
    info: Any,  # noqa: ANN401 - the driver has no types
    how: str,
) -> Result:
    shard_of_key = sharding(SHARDS, IGNORE_MSB)

    def ours() -> None:
        for key in keys:
            shard_of_key(key)

    def theirs() -> None:
        for key in keys:
            info.shard_id_from_token(murmur3(key))

    our_time, their_time = (seconds / len(keys) for seconds in alternately(ours, theirs))
    return Result(
        f"token + shard, {KEY_BYTES} bytes, {which}, times scylla-driver's ({how})",
        our_time / their_time,
        2,
        at_least=False,
        ours=f"{OURS} {our_time * 1e9:.0f} ns",
        peer=f"driver {their_time * 1e9:.0f} ns",
    )


if __name__ == "__main__":
    report("tokens", measure())
