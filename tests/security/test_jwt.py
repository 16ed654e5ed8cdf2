"""JWTs as values: which are accepted, whose they are, and what they grant."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidSetting, InvalidToken, TokenExpired
from maitred.security.directory import Directory
from maitred.security.jwt_claims import expires_at, granted_by, user_of
from maitred.security.jwt_keys import (
    JWKS_BYTES_MAX,
    PAUSE_SECONDS,
    KeySource,
    check_url,
    parse_jwks,
)
from maitred.security.jwt_verifier import JwtVerifier, UnknownKey
from maitred.security.permissions import NOTHING, Permissions
from maitred.settings import Node, User
from tests.security.cheap import cheaply
from tests.security.issuer import (
    AUDIENCE,
    ISSUER,
    claims,
    jwks,
    pem,
    private_key,
    public_jwk,
    settings,
    signed,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
USERS = {"bob": User(secret=cheaply("b"), permissions={"m": ["work"]})}


def verifier(directory: Path, *keys: dict[str, Any], **changes: Any) -> JwtVerifier:  # noqa: ANN401
    file = directory / "jwks.json"
    file.write_bytes(jwks(*(keys or (public_jwk("ec"), public_jwk("ed")))))
    chosen = settings(file, **changes)
    return JwtVerifier(chosen, KeySource(chosen), Directory(Node(users=USERS, jwt=chosen)))


def encoded(part: object) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


# What is accepted


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed"])
def test_a_token_of_the_issuer(kind: str, tmp_path: Path) -> None:
    checked = verifier(tmp_path, public_jwk(kind))
    for _ in range(2):  # verified, then remembered
        found = checked.identify(signed(NOW, kind), NOW)
        assert (found.name, found.via) == ("zoe", "jwt")
        assert found.permissions == Permissions({"n": ["query"]})
        assert found.until == NOW + 600 + 30


def test_a_key_without_an_id_is_found_if_it_is_the_only_one(tmp_path: Path) -> None:
    one = verifier(tmp_path, public_jwk("ec"))
    assert one.identify(signed(NOW, "ec", headers={"kid": None}), NOW).name == "zoe"
    two = verifier(tmp_path, public_jwk("ec", 0), public_jwk("ec", 1))
    with pytest.raises(UnknownKey):
        two.identify(signed(NOW, "ec", headers={"kid": None}), NOW)


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
def test_audiences(audience: object, tmp_path: Path) -> None:
    assert verifier(tmp_path).identify(signed(NOW, aud=audience), NOW).name == "zoe"


# What is not


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"iss": "https://login.example.com"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": ISSUER[:-1]}, "another issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"iss": None}, "no iss claim"),
        ({"aud": "other"}, "another audience"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": []}, "aud"),
        ({"aud": None}, "no aud claim"),
        ({"exp": None}, "no exp claim"),
        ({"exp": "soon"}, "exp claim"),
        ({"exp": True}, "exp claim"),
        ({"exp": 1e300}, "exp claim"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "now"}, "nbf claim"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"exp": NOW + 86_431}, "valid for more than"),
        ({"exp": NOW + 86_431, "iat": None}, "valid for more than"),
        ({"sub": None}, "names no user"),
        ({"sub": ""}, "names no user"),
        ({"sub": "maitred-gateway"}, "names no user"),
        ({"sub": "token"}, "names no user"),
        ({"sub": "/n/q"}, "names no user"),
        ({"sub": "a\x1b[31m"}, "names no user"),
        ({"sub": " a"}, "names no user"),
        ({"sub": "x" * 256}, "names no user"),
        ({"sub": "bob"}, "has a user of that name"),
        ({"groups": ["strangers"]}, "mapped to a permission"),
        ({"groups": None}, "mapped to a permission"),
        ({"groups": {"readers": True}}, "mapped to a permission"),
        ({"groups": ["x"] * 1_001}, "values"),
    ],
)
def test_claims_that_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidToken, match=said):
        verifier(tmp_path).identify(signed(NOW, **changes), NOW)


def test_a_token_expires_though_it_is_remembered(tmp_path: Path) -> None:
    checked = verifier(tmp_path)
    token = signed(NOW)
    assert checked.identify(token, NOW + 629).until == NOW + 630
    with pytest.raises(TokenExpired):
        checked.identify(token, NOW + 630)


def test_a_signature_of_another_key(tmp_path: Path) -> None:
    checked = verifier(tmp_path)
    forged = signed(NOW, "ec", 1, headers={"kid": "ec-0"})
    with pytest.raises(InvalidToken, match="signature"):
        checked.identify(forged, NOW)
    head, body, signature = signed(NOW).split(".")
    other = encoded(claims(NOW, groups=["makers"]))
    with pytest.raises(InvalidToken, match="signature"):
        checked.identify(f"{head}.{other}.{signature}", NOW)
    with pytest.raises(InvalidToken):
        checked.identify(f"{head}.{body}.", NOW)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, "HS256", "HS512", 7])
def test_no_algorithm_and_other_algorithms(algorithm: object, tmp_path: Path) -> None:
    header = encoded({"alg": algorithm, "typ": "JWT", "kid": "ec-0"})
    with pytest.raises(InvalidToken):
        verifier(tmp_path).identify(f"{header}.{encoded(claims(NOW))}.", NOW)


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_the_public_key_as_the_secret_of_an_hmac(kind: str, tmp_path: Path) -> None:
    import hashlib
    import hmac

    for secret in (pem(kind), jwks(public_jwk(kind))):
        for algorithm, hashing in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
            begin = f"{encoded({'alg': algorithm, 'kid': f'{kind}-0'})}.{encoded(claims(NOW))}"
            mac = hmac.new(secret, begin.encode(), hashing).digest()
            forged = f"{begin}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"
            with pytest.raises(InvalidToken, match="not accepted"):
                verifier(tmp_path, public_jwk(kind)).identify(forged, NOW)


def test_an_algorithm_that_is_not_the_keys(tmp_path: Path) -> None:
    checked = verifier(tmp_path, public_jwk("ec"), public_jwk("ed"))
    with pytest.raises(UnknownKey):
        checked.identify(signed(NOW, "ed", headers={"kid": "ec-0"}), NOW)


@pytest.mark.parametrize("header", ["jwk", "jku", "x5u", "x5c"])
def test_a_key_that_the_token_brings_along_is_not_looked_at(header: str, tmp_path: Path) -> None:
    own = public_jwk("ec", 9, kid="ec-0")
    brought = {"jwk": own, "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/", "x5c": ["x"]}
    for number in ("ec-0", None):
        forged = signed(NOW, "ec", 9, headers={"kid": number, header: brought[header]})
        with pytest.raises(InvalidToken, match="signature"):
            verifier(tmp_path, public_jwk("ec")).identify(forged, NOW)


def test_a_critical_header_that_is_not_understood(tmp_path: Path) -> None:
    forged = signed(NOW, headers={"crit": ["b64"], "b64": True})
    with pytest.raises(InvalidToken):
        verifier(tmp_path).identify(forged, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a" * 100,
        "\ud800.x.y",
        "é.é.é",
        f"{encoded([])}.{encoded({})}.x",
        f"{urlsafe_b64encode(b'[' * 6_000).decode()}.x.y",
        f"{encoded({'alg': 'ES256', 'kid': 7})}.{encoded({})}.x",
        f"{encoded({'alg': 'ES256', 'kid': 'x' * 300})}.{encoded({})}.x",
    ],
)
def test_what_is_no_token(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidToken):
        verifier(tmp_path).identify(text, NOW)


@given(st.text(max_size=200))
def test_any_text_is_refused_with_a_type(text: str) -> None:
    chosen = settings(jwks_url="https://login.example.org/keys")
    source = KeySource(chosen, fetch=lambda _: jwks(public_jwk("ec")))
    source.reload()
    checked = JwtVerifier(chosen, source, Directory(Node(jwt=chosen)))
    with pytest.raises(InvalidToken):
        checked.identify(text, NOW)


def test_a_payload_that_is_no_object(tmp_path: Path) -> None:
    forged = jwt.PyJWS().encode(
        b"[" * 5_000, private_key("ec"), algorithm="ES256", headers={"kid": "ec-0"}
    )
    with pytest.raises(InvalidToken, match="cannot be read"):
        verifier(tmp_path).identify(forged, NOW)


# Users of the node


def test_a_token_may_be_a_user_of_the_node_if_that_is_said(tmp_path: Path) -> None:
    checked = verifier(tmp_path, local_users=True)
    found = checked.identify(signed(NOW, sub="bob", groups=["strangers"]), NOW)
    assert found.permissions == Permissions({"m": ["work"]})
    assert checked.refreshed(found) == found
    checked._users.reload({"bob": User(secret=cheaply("b"), permissions={"m": ["query"]})})
    now = checked.refreshed(found)
    assert now is not None
    assert now.permissions == Permissions({"m": ["query"]})
    checked._users.reload({"eve": USERS["bob"]})
    assert checked.refreshed(found) is None, "it does not fall back to what its claims grant"


def test_a_user_who_comes_later_ends_the_session_of_a_namesake(tmp_path: Path) -> None:
    checked = verifier(tmp_path)
    found = checked.identify(signed(NOW), NOW)
    assert checked.refreshed(found) == found
    checked._users.reload({"zoe": USERS["bob"]})
    assert checked.refreshed(found) is None


# Mapping


CLAIM = st.one_of(
    st.lists(st.sampled_from(["readers", "makers", "strangers"]) | st.integers(), max_size=5),
    st.lists(st.sampled_from(["readers", "makers", "strangers"]), max_size=5).map(" ".join),
    st.none(),
    st.integers(),
    st.dictionaries(st.text(), st.text()),
)


@given(CLAIM)
def test_what_is_granted_is_the_sum_of_what_the_values_map_to(claim: object) -> None:
    chosen = settings()
    values = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    found = granted_by({"groups": claim}, chosen)
    for namespace in ("n", "m", "*"):
        for permission in ("query", "produce", "work", "admin"):
            expected = any(
                permission in chosen.permissions.get(str(value), {}).get(namespace, ())
                for value in values
            )
            assert found.allows(namespace, permission) == expected


def test_claims_inside_of_claims() -> None:
    chosen = settings(permissions_claim="realm.roles", user_claim="profile.name")
    inside = {"realm": {"roles": ["readers"]}, "profile": {"name": "zoe"}}
    assert granted_by(inside, chosen) == Permissions({"n": ["query"]})
    assert user_of(inside, chosen) == "zoe"
    assert granted_by({"realm.roles": ["readers"]}, chosen) == Permissions({"n": ["query"]})
    assert granted_by({"realm": ["roles"]}, chosen) == NOTHING
    with pytest.raises(InvalidToken):
        user_of({"profile": "zoe"}, chosen)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6) | st.none(), st.floats(-1e6, 1e6) | st.none())
def test_no_token_is_good_outside_of_its_times(
    end: float, begin: float | None, issued: float | None
) -> None:
    chosen = settings()
    times = {"exp": NOW + end}
    times |= {} if begin is None else {"nbf": NOW + begin}
    times |= {} if issued is None else {"iat": NOW + issued}
    good = (
        end + 30 > 0
        and (begin is None or begin - 30 <= 0)
        and (issued is None or issued - 30 <= 0)
        and end - (issued or 0) <= 86_400 + 30
    )
    try:
        until = expires_at(times, chosen, NOW)
    except InvalidToken:
        until = 0.0
    # Moments near 1.8e9 have steps of a quarter of a microsecond.
    close = any(
        abs(edge) < 1e-3
        for edge in (end + 30, (begin or 0) - 30, (issued or 0) - 30, end - (issued or 0) - 86_430)
    )
    assert close or (until > NOW) == good


# Keys


def test_keys_that_are_left_out(tmp_path: Path) -> None:
    keys = (
        public_jwk("short"),
        public_jwk("p384"),
        public_jwk("ec", 1, use="enc"),
        public_jwk("ec", 2, alg="ES384"),
        public_jwk("rsa", alg="RS512"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct-0"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"},
        {"kty": "RSA", "n": 5, "e": "AQAB", "kid": "broken"},
        "no key",
    )
    with pytest.raises(InvalidSetting, match="no key that can be used"):
        parse_jwks(jwks(*keys), "It")  # type: ignore[arg-type]
    assert len(parse_jwks(jwks(*keys, public_jwk("ed")), "It")) == 1  # type: ignore[arg-type]
    with pytest.raises(UnknownKey):
        verifier(tmp_path, public_jwk("ed"), public_jwk("ec", use="enc")).identify(signed(NOW), NOW)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 10_000])
def test_what_is_no_jwks(body: bytes) -> None:
    with pytest.raises(InvalidSetting, match="is not a JWKS"):
        parse_jwks(body, "It")


def test_a_file_that_changes(tmp_path: Path) -> None:
    checked = verifier(tmp_path, public_jwk("ec"))
    source = checked._source
    token = signed(NOW)
    found = checked.identify(token, NOW)
    assert not source.has_changed()
    file = tmp_path / "jwks.json"
    file.write_bytes(b"{")
    assert source.has_changed()
    with pytest.raises(InvalidSetting):
        source.reload()
    assert not source.has_changed(), "it is not tried again and again"
    assert checked.identify(token, NOW) == found, "the old keys stay"
    file.write_bytes(jwks(public_jwk("ec", 1), public_jwk("ed")))
    assert source.reload()
    assert not source.reload()
    with pytest.raises(UnknownKey):
        checked.identify(token, NOW)
    assert checked.refreshed(found) is None
    file.write_bytes(b" " * (JWKS_BYTES_MAX + 1))
    with pytest.raises(InvalidSetting, match="more than"):
        source.reload()


def test_when_keys_are_fetched() -> None:
    now = 0.0
    answers: list[bytes] = []

    def fetch(_: object) -> bytes:
        if not answers:
            raise InvalidSetting("Nobody answers.")
        return answers.pop()

    chosen = settings(jwks_url="https://login.example.org/keys", refresh_seconds=100.0)
    source = KeySource(chosen, fetch, lambda: now)
    assert source.has_changed()
    assert source.may_have_more()
    with pytest.raises(InvalidSetting):
        source.reload()
    assert not source.has_changed()
    assert not source.may_have_more()
    now = PAUSE_SECONDS
    assert source.has_changed(), "a fetch that failed is tried again soon"
    answers.append(jwks(public_jwk("ec")))
    assert source.reload()
    now += PAUSE_SECONDS
    assert not source.has_changed()
    assert source.may_have_more(), "for a token with a key that is not known"
    now += 100.0
    assert source.has_changed()
    with pytest.raises(InvalidSetting):
        source.reload()
    assert len(source.keys) == 1, "the old keys stay"


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.org/keys",
        "http://127.0.0.1.example.org/",
        "http://localhost.example.org/",
        "https://",
        "https:///keys",
        "https://user:secret@login.example.org/",
        "file:///etc/passwd",
        "ftp://login.example.org/",
        "login.example.org",
        "https://[::1",
        "https://host:port/",
    ],
)
def test_addresses_that_are_not_fetched(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://login.example.org/keys", "http://localhost:1/", "http://[::1]/k"]
)
def test_addresses_that_are(url: str) -> None:
    check_url(url)
