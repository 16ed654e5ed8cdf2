"""Tokens and shards, in C and in Python, against scylla-driver's own functions."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cassandra.c_shard_info import ShardingInfo
from cassandra.murmur3 import _murmur3, murmur3
from hypothesis import example, given
from hypothesis import strategies as st

from maitred.errors import InvalidShards
from maitred.routing import shard_of, sharding, token
from maitred.routing.tokens import sharding_in_python, token_in_python

if TYPE_CHECKING:
    from collections.abc import Callable

tokens = st.integers(-(2**63), 2**63 - 1)
shard_counts = st.integers(1, 1024)
ignored_bits = st.integers(0, 63)
# Mostly high bytes, and every length of the last block.
nasty = st.lists(st.sampled_from([0x00, 0x41, 0x7F, 0x80, 0xFF, 0xC3]), max_size=50).map(bytes)
any_bytes = st.one_of(st.binary(max_size=200), nasty, st.text(max_size=40).map(str.encode))

NOT_BUILT = "maitred.routing._tokens was not built: no compiler or no Python.h at the install"


class Implementation(NamedTuple):
    token: Callable[[bytes], int]
    sharding: Callable[[int, int], Callable[[bytes], int]]


IN_PYTHON = Implementation(token_in_python, sharding_in_python)


@pytest.fixture(scope="module")
def in_c() -> Implementation:
    module = pytest.importorskip("maitred.routing._tokens", reason=NOT_BUILT)
    return Implementation(module.token, module.sharding)


@pytest.fixture(scope="module", params=["C", "Python"])
def ours(request: pytest.FixtureRequest) -> Implementation:
    """Either: each test that takes it runs with both."""
    return IN_PYTHON if request.param == "Python" else request.getfixturevalue("in_c")


@given(any_bytes)
@example(b"")
def test_token_is_scylla_drivers(ours: Implementation, data: bytes) -> None:
    assert ours.token(data) == murmur3(data) == _murmur3(data)


@pytest.mark.parametrize("size", range(49))
def test_token_at_every_length_with_every_single_high_byte(ours: Implementation, size: int) -> None:
    assert ours.token(b"k" * size) == murmur3(b"k" * size)
    for position in range(size):
        data = bytearray(b"k" * size)
        data[position] = 0x9C
        assert ours.token(bytes(data)) == murmur3(bytes(data))


@given(any_bytes, shard_counts, ignored_bits)
def test_c_and_python_agree(
    in_c: Implementation, data: bytes, shards: int, ignore_msb: int
) -> None:
    assert in_c.token(data) == token_in_python(data)
    in_python = sharding_in_python(shards, ignore_msb)
    assert in_c.sharding(shards, ignore_msb)(data) == in_python(data)


def test_c_and_python_agree_at_every_length(in_c: Implementation) -> None:
    for size in range(201):
        for data in (bytes(range(size)), b"\xff" * size, bytes(100 + i % 56 for i in range(size))):
            assert in_c.token(data) == token_in_python(data), data


def test_empty_is_zero(ours: Implementation) -> None:
    assert ours.token(b"") == 0


@pytest.mark.parametrize(
    "not_bytes",
    ["text", "Käse", bytearray(b"key"), bytearray(b"\xff"), memoryview(b"key"), 5, None],
    ids=lambda value: type(value).__name__,
)
def test_only_bytes_have_a_token(ours: Implementation, not_bytes: Any) -> None:  # noqa: ANN401
    """Others that hold bytes, or text that would have to be encoded, are mistakes."""
    with pytest.raises(TypeError):
        ours.token(not_bytes)
    for ignore_msb in (0, 12):
        with pytest.raises(TypeError):
            ours.sharding(8, ignore_msb)(not_bytes)


def driver(shards: int, ignore_msb: int) -> Any:  # noqa: ANN401 - the driver has no types
    return ShardingInfo("0", str(shards), "", "", str(ignore_msb), None, None)


@given(tokens, shard_counts, ignored_bits)
def test_shard_is_the_seeds_formula(value: int, shards: int, ignore_msb: int) -> None:
    biased = (value + 2**63 << ignore_msb) % 2**64
    assert shard_of(value, shards, ignore_msb) == biased * shards // 2**64


@given(tokens, shard_counts, ignored_bits)
def test_shard_is_scylla_drivers(value: int, shards: int, ignore_msb: int) -> None:
    assert shard_of(value, shards, ignore_msb) == driver(shards, ignore_msb).shard_id_from_token(
        value
    )


@given(any_bytes, shard_counts, ignored_bits)
def test_sharding_of_a_node_is_token_and_shard_in_one(
    ours: Implementation, key: bytes, shards: int, ignore_msb: int
) -> None:
    shard = ours.sharding(shards, ignore_msb)(key)
    assert shard == shard_of(ours.token(key), shards, ignore_msb)
    assert shard == driver(shards, ignore_msb).shard_id_from_token(murmur3(key))


@pytest.mark.parametrize(("key", "ignore_msb"), [(b"2738800", 0), (b"24271036", 12)])
def test_the_lower_half_of_a_token_counts_too(
    ours: Implementation, key: bytes, ignore_msb: int
) -> None:
    """Keys, found by trying millions, whose upper 32 bits alone would name the shard before."""
    expected = driver(1023, ignore_msb).shard_id_from_token(murmur3(key))
    assert ours.sharding(1023, ignore_msb)(key) == expected


@given(shard_counts, ignored_bits)
def test_the_ends_of_the_token_range(shards: int, ignore_msb: int) -> None:
    for value in (-(2**63), -1, 0, 1, 2**63 - 1):
        assert 0 <= shard_of(value, shards, ignore_msb) < shards
    assert shard_of(-(2**63), shards, ignore_msb) == 0
    if shards <= 2 ** (64 - ignore_msb):
        assert shard_of(2**63 - 1, shards, ignore_msb) == shards - 1


def test_every_shard_gets_its_share(ours: Implementation) -> None:
    counts = [0] * 7
    shard_of_key = ours.sharding(7, 12)
    for number in range(7_000):
        counts[shard_of_key(f"ns:queue-{number}:1".encode())] += 1
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
        (2**70, 12, f"not {2**70}"),
    ],
)
def test_bad_sharding(shards: int, ignore_msb: int, sentence: str) -> None:
    with pytest.raises(InvalidShards, match=sentence):
        shard_of(5, shards, ignore_msb)
    with pytest.raises(InvalidShards, match=sentence):
        sharding(shards, ignore_msb)


@pytest.mark.parametrize(
    ("shards", "ignore_msb"), [(0, 12), (-1, 12), (4, -1), (4, 64), (2**70, 12)]
)
def test_the_c_alone_refuses_what_it_can_not_compute(
    in_c: Implementation, shards: int, ignore_msb: int
) -> None:
    with pytest.raises((ValueError, OverflowError)):
        in_c.sharding(shards, ignore_msb)


def test_two_nodes_do_not_share_their_numbers(ours: Implementation) -> None:
    nodes = [(shards, ours.sharding(shards, 12)) for shards in (3, 1, 1024, 16)]
    for shards, shard_of_key in nodes:
        assert shard_of_key(b"shop:orders:1") == shard_of(token(b"shop:orders:1"), shards)


def test_the_c_is_used_where_it_was_built(in_c: Implementation) -> None:
    assert token is in_c.token
    assert type(sharding(4)) is type(in_c.sharding(4, 12))


def test_routes_are_the_same_without_the_c() -> None:
    """In a fresh process where our C can't be imported, as after an install with no compiler."""
    program = (
        "import sys; sys.modules['maitred.routing._tokens'] = None\n"
        "from maitred.routing import sharding, token\n"
        "from maitred.routing.tokens import token_in_python\n"
        "assert token is token_in_python\n"
        "print(*(sharding(16)(f'käse:{i}'.encode()) for i in range(100)))\n"
    )
    without = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert without.split() == [str(sharding(16)(f"käse:{i}".encode())) for i in range(100)]
