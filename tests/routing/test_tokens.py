"""Tokens and shards against scylla-driver's own functions."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra.c_shard_info import ShardingInfo
from cassandra.murmur3 import _murmur3, murmur3
from hypothesis import example, given
from hypothesis import strategies as st

from maitred.errors import InvalidShards
from maitred.routing import shard_of, sharding, token

tokens = st.integers(-(2**63), 2**63 - 1)
# Mostly high bytes, and every length of the last block.
nasty = st.lists(st.sampled_from([0x00, 0x41, 0x7F, 0x80, 0xFF, 0xC3]), max_size=50).map(bytes)


@given(st.one_of(st.binary(max_size=100), nasty, st.text(max_size=40).map(str.encode)))
@example(b"")
def test_token_is_scylla_drivers(data: bytes) -> None:
    assert token(data) == murmur3(data) == _murmur3(data)


@pytest.mark.parametrize("size", range(49))
def test_token_at_every_length_with_every_single_high_byte(size: int) -> None:
    assert token(b"k" * size) == murmur3(b"k" * size)
    for position in range(size):
        data = bytearray(b"k" * size)
        data[position] = 0x9C
        assert token(bytes(data)) == murmur3(bytes(data))


def test_empty_is_zero() -> None:
    assert token(b"") == 0


def driver(shards: int, ignore_msb: int) -> Any:  # noqa: ANN401 - the driver has no types
    return ShardingInfo("0", str(shards), "", "", str(ignore_msb), None, None)


@given(tokens, st.integers(1, 1024), st.integers(0, 63))
def test_shard_is_the_seeds_formula(value: int, shards: int, ignore_msb: int) -> None:
    biased = (value + 2**63 << ignore_msb) % 2**64
    assert shard_of(value, shards, ignore_msb) == biased * shards // 2**64


@given(tokens, st.integers(1, 1024), st.integers(0, 63))
def test_shard_is_scylla_drivers(value: int, shards: int, ignore_msb: int) -> None:
    assert shard_of(value, shards, ignore_msb) == driver(shards, ignore_msb).shard_id_from_token(
        value
    )


@given(st.one_of(st.binary(max_size=60), nasty), st.integers(1, 1024), st.integers(0, 63))
def test_sharding_of_a_node_is_token_and_shard_in_one(
    key: bytes, shards: int, ignore_msb: int
) -> None:
    assert sharding(shards, ignore_msb)(key) == shard_of(token(key), shards, ignore_msb)


@given(st.integers(1, 1024), st.integers(0, 63))
def test_the_ends_of_the_token_range(shards: int, ignore_msb: int) -> None:
    for value in (-(2**63), -1, 0, 1, 2**63 - 1):
        assert 0 <= shard_of(value, shards, ignore_msb) < shards
    assert shard_of(-(2**63), shards, ignore_msb) == 0
    if shards <= 2 ** (64 - ignore_msb):
        assert shard_of(2**63 - 1, shards, ignore_msb) == shards - 1


def test_every_shard_gets_its_share() -> None:
    counts = [0] * 7
    for number in range(7_000):
        counts[shard_of(token(f"ns:queue-{number}:1".encode()), 7)] += 1
    # Binomial with mean 1,000 and standard deviation 29: five of them.
    assert all(abs(count - 1_000) < 146 for count in counts), counts


@pytest.mark.parametrize(
    ("shards", "ignore_msb", "sentence"),
    [
        (0, 12, "1 to 1024 shards, not 0"),
        (-4, 12, "not -4"),
        (1025, 12, "not 1025"),
        (4, -1, "0 to 63, not -1"),
        (4, 64, "not 64"),
    ],
)
def test_bad_sharding(shards: int, ignore_msb: int, sentence: str) -> None:
    with pytest.raises(InvalidShards, match=sentence):
        shard_of(5, shards, ignore_msb)
    with pytest.raises(InvalidShards, match=sentence):
        sharding(shards, ignore_msb)
