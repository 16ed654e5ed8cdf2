"""Signatures of the handlers that serve a queue, as its root remembers them.

Each worker announces what arguments its handler takes whenever it attends. The root remembers that
for a day, in memory and in a row of the store, so that producers can be told which arguments fit
no handler. Signatures are opaque here. Whatever goes wrong, the root forgets the difference rather
than the permission: a queue with more than `SIGNATURES_MAX` signatures accepts any arguments.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec import DecodeError, msgpack

SIGNATURES_MAX: Final = 16
"""Most different signatures of one queue. A deployment adds one. A worker that announces new ones
without end causes a row of at most 64 KiB, and turns the check off for this queue only."""

FURTHER: Final = b"\xc1"
"""Stands for all signatures beyond those that are remembered. It is no msgpack, so clients read it
like one of a later release: the handler may accept any arguments, and may hide any."""

SIGNATURES_ROW: Final = 0
"""Where the row of the signatures stands among the results of the root. No task has this number:
those start at `SEQUENCES_PER_RANGE`."""

REWRITES: Final = 24
"""How often the row is rewritten within the time for which signatures are kept, so that it says
when each was last seen. They are kept for longer by one of these intervals."""

ATTENDING_SECONDS: Final = 120.0
"""Seconds for which the partition keeps a signature, at least, after a worker announced it. A
worker attends several times within them."""

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(dict[bytes, float]).decode


class QueueSignatures:
    """Remembers which signatures were announced, and when last. Moments are wall-clock seconds."""

    __slots__ = ("_dirty", "_kept_seconds", "_seen", "_written_at", "is_complete")

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._seen: dict[bytes, float] = {}
        self._written_at = -inf
        self._dirty = False
        self.is_complete = not kept_seconds
        """Whether the row of an earlier owner was read, so that it can be overwritten."""

    @property
    def row_seconds(self) -> float:
        """How long a row is kept in the store after it was written."""
        return self._kept_seconds * (1 + 1 / REWRITES)

    def announce(self, signature: bytes, moment: float) -> None:
        """Note the signature of the handler of a worker that attends."""
        seen = self._seen
        if signature not in seen:
            self._forget(moment)
            if len(seen) >= SIGNATURES_MAX:
                signature = FURTHER
            self._dirty = self._dirty or signature not in seen
        seen[signature] = moment

    def merge(self, row: bytes | None, moment: float) -> None:
        """Add the signatures that an earlier owner wrote."""
        self.is_complete = True
        try:
            earlier = _decode(row) if row is not None else {}
        except DecodeError:
            return  # a later version of this program wrote it
        for signature, seen_at in earlier.items():
            self._seen[signature] = max(seen_at, self._seen.get(signature, -inf))
        self._forget(moment)

    def due(self, moment: float) -> bytes | None:
        """Return the row if it has to be written now, and count it as written."""
        if not self.is_complete or not self._kept_seconds or not self._seen:
            return None
        if not self._dirty and moment < self._written_at + self._kept_seconds / REWRITES:
            return None
        self._forget(moment)
        self._written_at, self._dirty = moment, False
        return _encode(self._seen)

    def known(self, moment: float) -> list[bytes]:
        """Return the signatures, the one that was seen last first."""
        self._forget(moment)
        return sorted(self._seen, key=self._seen.__getitem__, reverse=True)

    def last_seen(self, moment: float) -> float | None:
        """Return when a worker last attended; None if no signature is remembered."""
        self._forget(moment)
        return max(self._seen.values(), default=None)

    def _forget(self, moment: float) -> None:
        before = moment - max(self.row_seconds, ATTENDING_SECONDS)
        if any(seen_at < before for seen_at in self._seen.values()):
            self._seen = {one: at for one, at in self._seen.items() if at >= before}
