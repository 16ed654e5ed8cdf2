from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.errors import InvalidArgument, InvalidSetting
from maitred.security.secrets import (
    COST_MAX,
    COST_MIN,
    LANES_MAX,
    SECRET_BYTES_MAX,
    Hashed,
    _scrypt,
    check_hashed,
    hash_secret,
    parse_hashed,
    verify,
)
from tests.security.cheap import cheaply


def test_a_hash_says_how_it_was_made_and_no_two_are_the_same() -> None:
    first, second = hash_secret("open sesame"), hash_secret("open sesame")
    assert first.startswith("scrypt$16384$8$1$")
    assert first != second
    parts = parse_hashed(first)
    assert (len(parts.salt), len(parts.hash)) == (16, 32)
    assert verify("open sesame", first)
    assert verify("open sesame", second)
    assert not verify("open sesam", first)


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_only_the_secret_itself_is_right(secret: str, other: str) -> None:
    hashed = cheaply(secret)
    assert verify(secret, hashed)
    assert verify(other, hashed) == (other == secret)


def test_the_vector_of_rfc_7914() -> None:
    """Section 12, the second vector, cut to the 64 bytes that are allowed."""
    hashed = bytes.fromhex(
        "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
        "2eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640"
    )
    parts = Hashed(1024, 8, 16, b"NaCl", hashed)
    assert _scrypt(b"password", parts) == hashed


def test_secrets_that_nobody_can_use() -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        hash_secret("")
    with pytest.raises(InvalidArgument, match="longer than 1,024"):
        hash_secret("x" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="not Unicode"):
        hash_secret("\udc80")
    longest = "é" * (SECRET_BYTES_MAX // 2)
    assert verify(longest, hash_secret(longest))
    empty = Hashed(COST_MIN, 1, 1, bytes(16), bytes(32))
    for secret in ("", "x" * (SECRET_BYTES_MAX + 1), "\udc80"):
        assert not verify(secret, str(empty._replace(hash=_scrypt(b"", empty))))


def hashed(
    cost: int = 2**14, block: int = 8, lanes: int = 1, salt: int = 16, size: int = 32
) -> str:
    return str(Hashed(cost, block, lanes, bytes(salt), bytes(size)))


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (hashed(cost=COST_MIN), hashed(cost=COST_MIN // 2)),
        (hashed(cost=COST_MAX), hashed(cost=COST_MAX * 2)),
        (hashed(cost=COST_MAX), hashed(cost=COST_MAX, block=9)),
        (hashed(cost=2**14), hashed(cost=2**14 + 1)),
        (hashed(block=1), hashed(block=0)),
        (hashed(block=32, cost=2**15), hashed(block=33, cost=2**14)),
        (hashed(lanes=LANES_MAX), hashed(lanes=LANES_MAX + 1)),
        (hashed(), hashed(lanes=0)),
        (hashed(salt=8), hashed(salt=7)),
        (hashed(salt=64), hashed(salt=65)),
        (hashed(size=16), hashed(size=15)),
        (hashed(size=64), hashed(size=65)),
    ],
)
def test_parameters_have_bounds(allowed: str, refused: str) -> None:
    check_hashed(allowed)
    for use in (check_hashed, lambda text: verify("x", text)):
        with pytest.raises(InvalidSetting, match="out of bounds"):
            use(refused)


def test_the_costliest_allowed_can_really_be_verified() -> None:
    assert not verify("x", hashed(cost=COST_MAX))
    assert not verify("x", hashed(cost=2**15, block=32))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "scrypt$16384$8$1$AAAA",
        hashed() + "$",
        hashed().replace("scrypt", "argon2"),
        hashed().replace("16384", "-16384"),
        hashed().replace("16384", "1e5"),
        hashed().replace("16384", "9" * 5_000),
        hashed().replace("16384", "\u0661"),
        hashed().replace("=", "!"),
        hashed().rstrip("="),
        f"scrypt$16384$8$1${b64encode(bytes(16)).decode()}$\u00e9",
    ],
)
def test_what_is_no_hash_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"users\.a\.secret is not a hashed secret") as refused:
        check_hashed(text, "users.a.secret")
    assert "hash-secret" in str(refused.value.remedy)
    assert not text or text not in str(refused.value)
