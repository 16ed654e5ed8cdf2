"""Addresses: what they mean, and what is refused in which words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maitred
from maitred.client.address import (
    HostPort,
    TlsFiles,
    parse_address,
    settings_of,
)
from maitred.client.credentials import Credentials, TokenFile
from maitred.errors import (
    InvalidAddress,
    InvalidArgument,
    InvalidSetting,
    MaitredError,
    Unauthenticated,
    UnknownSetting,
)
from maitred.settings import PORT, ClientSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("maitred://localhost", ["localhost:4747"]),
        ("MAITRED://localhost/", ["localhost:4747"]),
        ("  maitred://localhost:1\n", ["localhost:1"]),
        ("maitred://a,b:2,10.0.0.1:65535", ["a:4747", "b:2", "10.0.0.1:65535"]),
        ("maitred://[::1]", ["[::1]:4747"]),
        ("maitred://[fe80::1%25eth0]:9,b", ["[fe80::1%eth0]:9", "b:4747"]),
        ("maitred://%6C%C3%BC", ["lü:4747"]),
    ],
)
def test_hosts(text: str, nodes: list[str]) -> None:
    address = parse_address(text)
    assert [node.name for node in address.nodes] == nodes
    assert address.credentials is None
    assert address.tls is None
    assert PORT == 4747


def test_everything_at_once() -> None:
    address = parse_address(
        "maitreds://ann:s%40crt%3A,%2F@[::1]:1,b?ca=/a%20b&cert=c&key=k&timeout_seconds=3&retries=0"
    )
    assert address.nodes == (HostPort("::1", 1), HostPort("b", 4747))
    assert address.credentials == Credentials("ann", "s@crt:,/")
    assert address.tls == TlsFiles("/a b", "c", "k")
    settings = settings_of(address, {})
    assert settings == ClientSettings(timeout_seconds=3.0, retries=0)


def test_settings_given_by_name_go_before_those_of_the_address() -> None:
    address = parse_address("maitred://a?timeout_seconds=3&waiting=7")
    assert settings_of(address, {"timeout_seconds": 5}) == ClientSettings(
        timeout_seconds=5.0, waiting=7
    )


def test_a_secret_is_shown_nowhere() -> None:
    url = "maitred://ann:hush@a,b?timeout_seconds=3"
    address = parse_address(url)
    shown = f"{address!r} {address} {address.credentials} {maitred.connect(url)!r}"
    assert "hush" not in shown
    assert "ann" in shown
    assert str(address) == "maitred://ann:***@a:4747,b:4747"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not start with maitred://"),
        ("localhost:4747", "does not start with maitred://"),
        ("http://a", "does not start with maitred://"),
        ("maitred:/a", "does not start with maitred://"),
        ("maitred://", "host without a name"),
        ("maitred://a,,b", "host without a name"),
        ("maitred://:4747", "host without a name"),
        ("maitred://a:0", "'0' is not a port"),
        ("maitred://a:65536", "'65536' is not a port"),
        ("maitred://a:", "'' is not a port"),
        ("maitred://a:x", "'x' is not a port"),
        ("maitred://a:٣", "is not a port"),
        ("maitred://a:" + "9" * 5000, "is not a port"),
        ("maitred://::1", "is not a port"),
        ("maitred://[::1", "not a host with a port"),
        ("maitred://[a]", "no IPv6 address"),
        ("maitred://a/b", "path or a fragment"),
        ("maitred://a#b", "path or a fragment"),
        ("maitred://a,b,a:4747", "names a:4747 twice"),
        ("maitred://ann@a", "not a user and a secret"),
        ("maitred://ann:@a", "not a user and a secret"),
        ("maitred://:hush@a", "not a user and a secret"),
        ("maitred://@a", "not a user and a secret"),
        ("maitred://%ff:hush@a", "not UTF-8"),
        ("maitred://%ff", "not UTF-8"),
        ("maitred://a b%0a", "control characters"),
        ("maitred://a?timeout_seconds", "has no value"),
        ("maitred://a?timeout_seconds=", "has no value"),
        ("maitred://a?retries=1&retries=2", "given twice"),
        ("maitred://a?timeout_seconds=soon", "timeout_seconds is 'soon' (from the address)"),
        ("maitred://a?timeout_seconds=0", "a number above 0"),
        ("maitred://a?ca=x", "'ca' is for TLS"),
        ("maitreds://a?key=x", "a TLS key and no certificate"),
    ],
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(InvalidAddress) as refused:
        parse_address(text)
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownSetting, match="Did you mean 'timeout_seconds'"):
        parse_address("maitred://a?timeout_second=3")
    with pytest.raises(UnknownSetting, match="Did you mean 'retries'"):
        maitred.connect("maitred://a", retrys=3)


def test_a_setting_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="retries"):
        maitred.connect("maitred://a", retries=-1)


def test_no_text_and_a_context_without_tls_are_refused() -> None:
    import ssl

    with pytest.raises(InvalidAddress, match="is text, not int"):
        parse_address(4747)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="maitreds://"):
        maitred.connect("maitred://a", tls=ssl.create_default_context())


@given(st.text(max_size=40), st.sampled_from(["maitred://", "maitreds://", ""]))
def test_any_text_is_an_address_or_a_typed_refusal(text: str, scheme: str) -> None:
    with suppress(MaitredError):
        assert parse_address(scheme + text).nodes


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 65535)), min_size=1, max_size=4, unique=True),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_what_is_spelled_out_is_read_back(hosts: list[tuple[str, int]], secret: str) -> None:
    from urllib.parse import quote

    listed = ",".join(f"{host}:{port}" for host, port in hosts)
    address = parse_address(f"maitred://u:{quote(secret, safe='')}@{listed}")
    assert [tuple(node) for node in address.nodes] == hosts
    assert address.credentials == ("u", secret)


def test_a_token_stands_in_the_place_of_a_user() -> None:
    address = parse_address("maitred://token:mtd_0_1@a")
    assert address.credentials == Credentials("token", "mtd_0_1")
    address = parse_address("maitred://a?token_file=/run/secrets/t%20k&retries=0")
    assert address.credentials == TokenFile("/run/secrets/t k")
    assert str(address) == "maitred://token:***@a:4747"
    assert "mtd_0_1" not in repr(maitred.connect("maitred://a", token="mtd_0_1"))  # noqa: S106


@pytest.mark.parametrize("given", [{"token": "t"}, {"token_file": "f"}])
def test_who_one_is_is_said_once(given: dict[str, Any]) -> None:
    for url in ("maitred://a:b@c", "maitred://c?token_file=f"):
        with pytest.raises(InvalidAddress, match="has credentials"):
            maitred.connect(url, **given)
    with pytest.raises(InvalidAddress, match="has credentials"):
        maitred.connect("maitred://c", token="t", token_file="f")  # noqa: S106


def test_a_token_file_is_read_each_time_it_is_shown(tmp_path: Path) -> None:
    file = TokenFile(str(tmp_path / "token"))
    with pytest.raises(Unauthenticated, match="cannot be read: No such file"):
        file.shown()
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(Unauthenticated, match="is empty"):
        file.shown()
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(Unauthenticated, match="is no text"):
        file.shown()
    for text in ("mtd_1", "mtd_2"):
        (tmp_path / "token").write_text(f"{text}\n")
        assert file.shown() == Credentials("token", text)
        assert text not in repr(file.shown())
