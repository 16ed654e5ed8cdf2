"""When a certificate expires.

Python's `ssl` reads certificates but does not tell when one's own expires. The validity is the
fifth field of a certificate (RFC 5280), so skipping four DER fields is enough; nothing is verified
here, since OpenSSL has accepted the file already.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from maitred.errors import InvalidSetting

WARNING_DAYS: Final = 14
"""Days before a certificate expires from which on the log warns of it every day."""

DAY_SECONDS: Final = 86_400.0

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def expiry_of(path: str) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since 1970."""
    try:
        return not_after(first_certificate(path))
    except (OSError, ValueError, IndexError) as problem:
        raise InvalidSetting(
            f"The TLS certificate {path} does not say when it expires: {problem}."
        ) from None


def first_certificate(path: str) -> bytes:
    """Return the first certificate of a PEM file in DER form: that of the listener itself. Raise
    `OSError` or `ValueError` if there is none."""
    text = Path(path).read_text("ascii", errors="replace")
    begin = text.index(_BEGIN)
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin)] + _END)


def not_after(der: bytes) -> float:
    """Return when a DER certificate expires, in seconds since 1970; raise `ValueError` or
    `IndexError` for other bytes."""
    _, certificate, _ = _field(der)
    _, rest, _ = _field(certificate)
    kind, _, after = _field(rest)
    if kind == _VERSION:
        rest = after
    for _ in ("serial number", "signature algorithm", "issuer"):
        _, _, rest = _field(rest)
    kind, validity, _ = _field(rest)
    if kind != _SEQUENCE:
        raise ValueError("its validity is missing")
    _, _, after = _field(validity)
    kind, moment, _ = _field(after)
    text = moment.decode("ascii")
    if kind == _UTC_TIME:  # its two digits stand for 1950 to 2049
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _field(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the first field: its tag, its content, and what follows it."""
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it is cut off")
    return data[0], data[start : start + length], data[start + length :]
