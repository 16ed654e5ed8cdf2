"""The keys that sign JWTs: a JWKS (RFC 7517) from a file or an https URL, reloaded when it changes.

Each key is bound to the one algorithm of its kind, so a token cannot choose how it is verified: a
public RSA key is never the secret of an HMAC. Keys of other kinds, for encryption or too short are
left out of the set. A key that a token itself names (`jwk`, `jku`, `x5u`) is ignored.
"""

from __future__ import annotations

import json
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from maitred.errors import CannotStart, InvalidSetting
from maitred.security.hosts import is_loopback
from maitred.security.stamps import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from http.client import HTTPMessage
    from typing import IO

    from jwt import PyJWK

    from maitred.settings import Jwt

JWT_KEYS: Final = "JWT keys"
"""Name of this part in logs and in the answer to `maitred admin reload`."""

JWKS_BYTES_MAX: Final = 256 * 1024
"""Largest JWKS. A key has some 500 bytes, with certificates some thousand."""

KEYS_MAX: Final = 100
"""Most keys that are used of one JWKS; issuers have two or three."""

FETCH_SECONDS: Final = 5.0
"""Longest time that the issuer's whole answer may take."""

PAUSE_SECONDS: Final = 10.0
"""Least time between two fetches: strangers who send tokens with unknown keys, and an issuer that
does not answer, do not make the node call the issuer more often."""

RSA_BITS_MIN: Final = 2_048

_ALGORITHMS: Final = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""The algorithm by kind and curve of a key: one for each, and nothing else is accepted."""

ALGORITHMS: Final = frozenset(_ALGORITHMS.values())

_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")


class SigningKey(NamedTuple):
    """A public key that verifies signatures."""

    id: str | None
    algorithm: str
    thumbprint: str
    """Identifies the key, whatever its id."""
    key: PyJWK


class KeySet:
    """The keys of one JWKS."""

    def __init__(self, keys: Mapping[str, SigningKey] | None = None) -> None:
        self._keys = dict(keys or {})
        """Keys by thumbprint."""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, thumbprint: str) -> bool:
        return thumbprint in self._keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._names() == other._names()

    def __hash__(self) -> int:
        return hash(self._names())

    def _names(self) -> frozenset[tuple[str, str | None]]:
        return frozenset((key.thumbprint, key.id) for key in self._keys.values())

    def find(self, number: str | None, algorithm: str) -> SigningKey | None:
        """Return the key with that id; without an id the only key of the algorithm. None if there
        is no such key, or if several match."""
        found = [
            key
            for key in self._keys.values()
            if key.algorithm == algorithm and (number is None or key.id == number)
        ]
        return found[0] if len(found) == 1 else None


def parse_jwks(body: bytes, source: str) -> KeySet:
    """Return the usable keys; raise `InvalidSetting` if the text is not a JWKS or has none."""
    try:
        listed = json.loads(body)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise InvalidSetting(
            f"{source} is not a JWKS: it is not a JSON object with an array of keys.",
            remedy="An OpenID issuer names its JWKS as jwks_uri in its configuration.",
        )
    keys = [key for one in listed[:KEYS_MAX] if (key := _signing_key(one)) is not None]
    if not keys:
        raise InvalidSetting(
            f"{source} has no key that can be used.",
            remedy="Usable are RSA keys of 2,048 bits or more, P-256 and Ed25519, for signatures.",
        )
    return KeySet({key.thumbprint: key for key in keys})


def _signing_key(one: object) -> SigningKey | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if not isinstance(one, dict):
        return None
    algorithm = _ALGORITHMS.get((str(one.get("kty")), str(one.get("crv", ""))))
    number = one.get("kid")
    if (
        algorithm is None
        or one.get("alg", algorithm) != algorithm
        or one.get("use", "sig") != "sig"
        or not isinstance(number, str | None)
    ):
        return None
    public: dict[str, Any] = {name: one[name] for name in _PUBLIC if name in one}
    try:
        # From the public part alone: a private key in the file does not stay in memory.
        key = PyJWK(public, algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and getattr(key.key, "key_size", 0) < RSA_BITS_MIN:
        return None
    spelled = json.dumps(public, sort_keys=True, separators=(",", ":"))
    return SigningKey(number, algorithm, sha256(spelled.encode()).hexdigest(), key)


class KeySource:
    """The source of the keys, and the keys that it has now. See `reloading.Reloadable`."""

    part = JWT_KEYS

    def __init__(
        self,
        settings: Jwt,
        fetch: Callable[[Jwt], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_library()
        self._settings = settings
        self._fetch = fetch or _fetched
        self._clock = clock
        self._stamp = stamp_of(settings.jwks_file) if settings.jwks_file is not None else None
        self._tried_at: float | None = None
        self._failed = False
        self.is_read = False
        """Whether the keys are being read at this moment."""
        self.keys = KeySet()
        """The keys; empty at first if they come from a URL, so that the node can start without its
        issuer."""
        if settings.jwks_file is not None:
            self.keys = self._read()

    def has_changed(self) -> bool:
        """Whether it is time to read the keys: the file changed, or the last fetch was long ago."""
        if self._settings.jwks_file is not None:
            return stamp_of(self._settings.jwks_file) != self._stamp
        pause = PAUSE_SECONDS if self._failed else self._settings.refresh_seconds
        return self._tried_at is None or self._clock() - self._tried_at >= pause

    def may_have_more(self) -> bool:
        """Whether fetching may find an unknown key, and is allowed now."""
        if self._settings.jwks_file is not None:
            return False
        return self._tried_at is None or self._clock() - self._tried_at >= PAUSE_SECONDS

    def reload(self) -> bool:
        """Read or fetch the keys, in a thread; return whether they changed."""
        self.is_read = self._failed = True
        self._tried_at = self._clock()
        if self._settings.jwks_file is not None:
            self._stamp = stamp_of(self._settings.jwks_file)
        try:
            before, self.keys = self.keys, self._read()
            self._failed = False
        finally:
            self.is_read = False
        return self.keys != before

    def _read(self) -> KeySet:
        file = self._settings.jwks_file
        if file is None:
            return parse_jwks(
                self._fetch(self._settings), f"What {self._settings.jwks_url} answers"
            )
        try:
            with Path(file).open("rb") as opened:
                body = opened.read(JWKS_BYTES_MAX + 1)
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidSetting(
                f"The JWKS {file} cannot be read: {reason}.",
                remedy="Check the path, and who may read the file.",
            ) from None
        if len(body) > JWKS_BYTES_MAX:
            raise InvalidSetting(f"The JWKS {file} has more than {JWKS_BYTES_MAX:,} bytes.")
        return parse_jwks(body, f"The JWKS {file}")


def check_library() -> None:
    """Raise `CannotStart` unless the packages for JWT are installed."""
    try:
        import cryptography  # noqa: F401 - whether it is there
        import jwt  # noqa: F401
    except ModuleNotFoundError as missing:
        raise CannotStart(
            f"JWT needs the package {missing.name}, which is not installed.",
            remedy="Install it with: pip install 'maitred[jwt]'",
        ) from None


def check_url(url: str) -> None:
    """Raise `InvalidSetting` unless the URL is https; http is accepted for this machine only."""
    try:
        place = urlsplit(url)
        host, _port = place.hostname or "", place.port
    except ValueError:
        place, host = urlsplit(""), ""
    if place.scheme == "https" and host and not place.username:
        return
    if place.scheme == "http" and is_loopback(host) and not place.username:
        return
    raise InvalidSetting(
        "jwt.jwks_url is not an https address.",
        remedy="Write https://host/path; http:// is accepted for this machine only, and user names "
        "are not.",
    )


def _fetched(settings: Jwt) -> bytes:
    """Return the body of the issuer's answer; blocks for at most `FETCH_SECONDS`, or little
    more."""
    # Imported late: most shards never fetch anything.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    from maitred.security.tls import client_context

    class NoRedirects(HTTPRedirectHandler):
        """Refuse redirects: only the host that the URL names says which keys are trusted."""

        def redirect_request(
            self,
            req: Request,  # noqa: ARG002
            fp: IO[bytes],  # noqa: ARG002
            code: int,  # noqa: ARG002
            msg: str,  # noqa: ARG002
            headers: HTTPMessage,  # noqa: ARG002
            newurl: str,  # noqa: ARG002
        ) -> None:
            return None

    url = settings.jwks_url or ""
    check_url(url)
    opener = build_opener(
        NoRedirects, HTTPSHandler(context=client_context(settings.jwks_authorities))
    )
    deadline = time.monotonic() + FETCH_SECONDS
    body = b""
    try:
        request = Request(url, headers={"Accept": "application/json"})  # noqa: S310 - checked
        with opener.open(request, timeout=FETCH_SECONDS) as answer:
            # In pieces: the timeout applies to each read, so the deadline is checked after each.
            while piece := answer.read1(16 * 1024):
                body += piece
                if len(body) > JWKS_BYTES_MAX:
                    raise InvalidSetting(f"{url} answers more than {JWKS_BYTES_MAX:,} bytes.")
                if time.monotonic() > deadline:
                    raise InvalidSetting(f"{url} takes more than {FETCH_SECONDS:g} s to answer.")
    except (OSError, ValueError, HTTPException) as problem:
        if isinstance(problem, InvalidSetting):
            raise
        reason: object = problem
        if isinstance(problem, HTTPError):
            problem.close()
        elif isinstance(problem, URLError):
            reason = problem.reason
        raise InvalidSetting(
            f"{url} cannot be fetched: {reason}.",
            remedy="The keys that were fetched before stay. Check the address and the network.",
        ) from None
    return body
