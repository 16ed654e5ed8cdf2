"""CQL's notation: how a body encodes strings, bytes, lists and maps.

A `Reader` reads a body once, from front to back, and raises `ProtocolViolation` for anything
malformed; the functions that encode are its inverses. Lengths are checked before anything is
allocated.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

from maitred.errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHORT: Final = Layout(">H")
_INT: Final = Layout(">i")

SHORT_MAX: Final = 0xFFFF


class Reader:
    """Reads a body from front to back."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def byte(self) -> int:
        """Read one unsigned byte."""
        return self._take(1)[0]

    def short(self) -> int:
        """Read a [short]: two bytes, unsigned."""
        return int.from_bytes(self._take(2), "big")

    def integer(self) -> int:
        """Read an [int]: four bytes, signed."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def string(self) -> str:
        """Read a [string]: a [short] and as many bytes of UTF-8."""
        return self._text(self.short())

    def long_string(self) -> str:
        """Read a [long string]: an [int] and as many bytes of UTF-8."""
        size = self.integer()
        if size < 0:
            raise ProtocolViolation(f"A string cannot have {size} bytes.")
        return self._text(size)

    def blob(self) -> bytes | None:
        """Read [bytes]: an [int] and as many bytes; a negative number means null."""
        size = self.integer()
        return None if size < 0 else self._take(size)

    def string_list(self) -> list[str]:
        """Read a [string list]: a [short] and as many strings."""
        return [self.string() for _ in range(self.short())]

    def string_map(self) -> dict[str, str]:
        """Read a [string map]: a [short] and as many pairs of strings."""
        return {self.string(): self.string() for _ in range(self.short())}

    def string_multimap(self) -> dict[str, list[str]]:
        """Read a [string multimap]: a [short] and as many pairs of a string and a string list."""
        return {self.string(): self.string_list() for _ in range(self.short())}

    def bytes_map(self) -> dict[str, bytes | None]:
        """Read a [bytes map]: a [short] and as many pairs of a string and bytes."""
        return {self.string(): self.blob() for _ in range(self.short())}

    def inet(self) -> tuple[str, int]:
        """Read an [inet]: the size of an address, the address, and a port as an [int]."""
        size = self.byte()
        if size not in (4, 16):
            raise ProtocolViolation(f"An address has 4 or 16 bytes, not {size}.")
        return str(ip_address(self._take(size))), self.integer()

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self._take(len(self._body) - self._at)

    @property
    def at_end(self) -> bool:
        """Whether the whole body has been read."""
        return self._at == len(self._body)

    def _take(self, size: int) -> bytes:
        at, end = self._at, self._at + size
        if end > len(self._body):
            raise ProtocolViolation(
                f"The body ends after {len(self._body)} bytes, in the middle of a value."
            )
        self._at = end
        return self._body[at:end]

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise ProtocolViolation("A string in the body is not UTF-8.") from None


def short(value: int) -> bytes:
    """Encode a [short]."""
    return _SHORT.pack(value)


def integer(value: int) -> bytes:
    """Encode an [int]."""
    return _INT.pack(value)


def string(text: str) -> bytes:
    """Encode a [string]; a text that is too long for one is truncated at a whole character."""
    encoded = text.encode()
    if len(encoded) > SHORT_MAX:
        encoded = encoded[:SHORT_MAX].decode(errors="ignore").encode()
    return _SHORT.pack(len(encoded)) + encoded


def long_string(text: str) -> bytes:
    """Encode a [long string]."""
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def blob(value: bytes | None) -> bytes:
    """Encode [bytes]; None is null."""
    return _INT.pack(-1) if value is None else _INT.pack(len(value)) + value


def string_list(texts: Sequence[str]) -> bytes:
    """Encode a [string list]."""
    return short(len(texts)) + b"".join(map(string, texts))


def string_map(entries: Mapping[str, str]) -> bytes:
    """Encode a [string map]."""
    return short(len(entries)) + b"".join(
        string(key) + string(value) for key, value in entries.items()
    )


def string_multimap(entries: Mapping[str, Sequence[str]]) -> bytes:
    """Encode a [string multimap]."""
    return short(len(entries)) + b"".join(
        string(key) + string_list(values) for key, values in entries.items()
    )


def bytes_map(entries: Mapping[str, bytes | None]) -> bytes:
    """Encode a [bytes map]."""
    return short(len(entries)) + b"".join(
        string(key) + blob(value) for key, value in entries.items()
    )


def inet(address: str, port: int) -> bytes:
    """Encode an [inet]."""
    packed = ip_address(address).packed
    return bytes((len(packed),)) + packed + integer(port)
