"""An issuer of JWTs for tests: its keys, its JWKS, and tokens of every kind, honest or not."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from maitred.settings import Jwt

if TYPE_CHECKING:
    from pathlib import Path

ISSUER = "https://login.example.org"
AUDIENCE = "maitred"
ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}


def private_key(kind: str, number: int = 0) -> Any:  # noqa: ANN401 - one of three kinds
    """The same for each number; making an RSA key takes a moment."""
    return _made(kind, number)


@cache
def _made(kind: str, _number: int) -> Any:  # noqa: ANN401
    if kind == "rsa":
        return rsa.generate_private_key(65_537, 2_048)
    if kind == "short":
        return rsa.generate_private_key(65_537, 1_024)  # noqa: S505 - it is to be refused
    if kind == "p384":
        return ec.generate_private_key(ec.SECP384R1())
    return ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else _ed()


def _ed() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(kind: str, number: int = 0, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    public = private_key(kind, number).public_key()
    algorithm: Any = {"rsa": RSAAlgorithm, "short": RSAAlgorithm, "ed": OKPAlgorithm}.get(
        kind, ECAlgorithm
    )
    made: dict[str, Any] = {**algorithm.to_jwk(public, as_dict=True)}
    made.pop("key_ops", None)
    return {**made, "kid": f"{kind}-{number}", "use": "sig", **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def pem(kind: str) -> bytes:
    """The public key, as everybody can have it."""
    public: bytes = (
        private_key(kind).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return public


def claims(now: float, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Those of an honest token; a claim that is None is left out."""
    made = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "zoe",
        "iat": int(now),
        "exp": int(now) + 600,
        "groups": ["readers"],
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def signed(
    now: float,
    kind: str = "ec",
    number: int = 0,
    headers: dict[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401
) -> str:
    """A token with the key's id in its header, unless the headers say otherwise."""
    given = {"kid": f"{kind}-{number}", **(headers or {})}
    return jwt.PyJWS().encode(
        json.dumps(claims(now, **changes)).encode(),
        private_key(kind, number),
        algorithm=ALGORITHMS[kind],
        headers={name: value for name, value in given.items() if value is not None},
    )


def settings(file: Path | None = None, **changes: Any) -> Jwt:  # noqa: ANN401
    given: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "permissions": {"readers": {"n": ["query"]}, "makers": {"n": ["produce"], "m": ["query"]}},
        **({"jwks_file": str(file)} if file is not None else {}),
        **changes,
    }
    return Jwt(**given)
