"""Random tokens of reservations and passes, drawn many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS_AT_ONCE = 64
TOKEN_BYTES = 16


class SecretTokens:
    """Hands out tokens of sixteen random bytes."""

    __slots__ = ("_made", "_secret")

    def __init__(self, secret: Callable[[int], bytes]) -> None:
        self._secret = secret
        self._made: list[bytes] = []
        """Tokens made in advance: to ask the operating system for each would cost more."""

    def new(self) -> bytes:
        """Return one that was never handed out."""
        if not self._made:
            fresh = self._secret(TOKENS_AT_ONCE * TOKEN_BYTES)
            self._made = [fresh[at : at + TOKEN_BYTES] for at in range(0, len(fresh), TOKEN_BYTES)]
        return self._made.pop()
