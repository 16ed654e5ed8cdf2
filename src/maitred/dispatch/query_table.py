"""The query table of a gateway: its queries, their users, and their outcomes.

The table is bounded: when it is full, the rows of the queries that ended longest ago make room.
Queries under way are never dropped; their number has a limit of its own, beyond which a query is
refused. The table keeps as much of a query's arguments as it shows, and makes them readable when
its rows are read: most rows never are.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, Struct, json, msgpack

from maitred.dispatch.query_states import FOLLOWS, UNDER_WAY
from maitred.errors import InternalError, Overloaded
from maitred.protocol.queries import QueryFilter, QueryRow, QueryStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.dispatch.ask import Ask
    from maitred.settings import Querying

BUSY_RETRY_SECONDS: Final = 0.5
"""Seconds after which a refused caller may try again."""

MASKED: Final = "***"
_ERROR_LETTERS: Final = 500
_BYTES_A_LETTER: Final = 4
_decode: Final = msgpack.Decoder().decode


class QueryEntry(Struct, gc=False):
    """The row of one query."""

    sequence: int
    namespace: str
    queue: str
    user: str
    connection: str
    priority: int
    text: str
    payload: bytes
    """The part of the arguments that is needed to show them."""
    bytes_in: int
    received_at: float
    changed_at: float
    status: QueryStatus = "waiting"
    sent_at: float = 0.0
    returned_at: float = 0.0
    worker: str = ""
    error: str = ""
    bytes_out: int = 0
    attempts: int = 0
    relayed: bool = False


_SHOWN: Final = tuple(
    name for name in QueryRow.__struct_fields__ if name in QueryEntry.__struct_fields__
)
"""The columns that a row shows as they are."""


class QueryTable:
    """Numbers the queries of a gateway from 1 on, and keeps their rows."""

    def __init__(self, settings: Querying, gateway: str, name: str = "") -> None:
        self.gateway = gateway
        """The first eight letters of the gateway's session in hexadecimal."""
        self.name = name
        self.under_way = 0
        self._most_under_way = settings.under_way
        self.counts: dict[str, int] = dict.fromkeys(FOLLOWS, 0)
        """How often queries reached each status."""
        self.relayed = 0
        """How often a query was sent through the node."""
        self._most = settings.table_rows
        self._letters = settings.text_letters
        self._kept_bytes = 0 if settings.mask else settings.text_letters * _BYTES_A_LETTER
        self._mask = settings.mask
        self._entries: dict[int, QueryEntry] = {}
        self._over: deque[int] = deque()
        self._next = 1

    def __repr__(self) -> str:
        return f"<QueryTable {self.gateway}, {len(self)} rows, {self.under_way} under way>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    # Changes

    def enter(self, ask: Ask, wall: float) -> QueryEntry:
        """Add a row for a new query; raise `Overloaded` if too many queries are under way."""
        if self.under_way >= self._most_under_way:
            raise Overloaded(
                f"{self.under_way:,} queries are under way at this gateway already; this one was "
                "not begun.",
                remedy="Come back later, or raise under_way.",
                retry_after=BUSY_RETRY_SECONDS,
            )
        sequence = self._next
        self._next = sequence + 1
        text = ask.text
        payload = ask.payload
        entry = QueryEntry(
            sequence,
            ask.namespace,
            ask.queue,
            ask.user,
            ask.connection,
            ask.priority,
            "" if self._mask else text[: self._letters],
            b"" if text else payload[: self._kept_bytes],
            len(payload),
            wall,
            wall,
        )
        if len(self._entries) >= self._most and self._over:
            del self._entries[self._over.popleft()]
        self._entries[sequence] = entry
        self.under_way += 1
        self.counts["waiting"] += 1
        return entry

    def changed(self, entry: QueryEntry, ask: Ask) -> None:
        """Show the query as a hook has changed it."""
        entry.namespace, entry.queue, entry.priority = ask.namespace, ask.queue, ask.priority
        entry.text = "" if self._mask else ask.text[: self._letters]
        entry.payload = b"" if ask.text else ask.payload[: self._kept_bytes]
        entry.bytes_in = len(ask.payload)

    def move(self, entry: QueryEntry, status: QueryStatus, wall: float, error: str = "") -> None:
        """Give the query another status, with the reason of an end that needs one; raise
        `InternalError` if the status cannot follow."""
        if status not in FOLLOWS[entry.status]:
            raise InternalError(f"A query cannot be {status} after it was {entry.status}.")
        entry.status = status
        entry.changed_at = wall
        self.counts[status] += 1
        if status not in UNDER_WAY:
            entry.returned_at = wall
            entry.error = error[:_ERROR_LETTERS]
            self.under_way -= 1
            self._over.append(entry.sequence)
            while len(self._entries) > self._most and self._over:
                del self._entries[self._over.popleft()]

    # Reading

    def rows(self, wanted: QueryFilter | None = None) -> list[QueryRow]:
        """Return the rows that match, the newest last."""
        wanted = wanted or QueryFilter()
        newest = list(islice(self._matching(wanted), wanted.most))
        return [self.row(entry) for entry in reversed(newest)]

    def _matching(self, wanted: QueryFilter) -> Iterator[QueryEntry]:
        if not self._is_asked(wanted.gateway):
            return
        if wanted.sequence >= 0:
            entry = self._entries.get(wanted.sequence)
            candidates = [] if entry is None else [entry]
        else:
            candidates = list(reversed(self._entries.values()))
        for entry in candidates:
            if (
                (not wanted.namespace or entry.namespace == wanted.namespace)
                and (not wanted.queue or entry.queue == wanted.queue)
                and (not wanted.user or entry.user == wanted.user)
                and (not wanted.status or entry.status == wanted.status)
                and (not wanted.worker or entry.worker == wanted.worker)
                and (not wanted.changed_since or entry.changed_at > wanted.changed_since)
            ):
                yield entry

    def _is_asked(self, gateway: str) -> bool:
        return not gateway or self.gateway.startswith(gateway.lower()) or gateway == self.name

    def row(self, entry: QueryEntry) -> QueryRow:
        """Return the row as operators see it."""
        shown = {name: getattr(entry, name) for name in _SHOWN}
        return QueryRow(gateway=self.gateway, query=self._text(entry), **shown)

    def _text(self, entry: QueryEntry) -> str:
        if self._mask:
            return MASKED
        text = entry.text or readable(entry.payload, whole=len(entry.payload) == entry.bytes_in)
        return text[: self._letters]


def readable(payload: bytes, *, whole: bool) -> str:
    """Return arguments as text; of an incomplete payload, the printable letters in it."""
    if whole:
        try:
            value = _decode(payload)
            # A query that is one text is shown as that text.
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
                return value[0]
            return json.encode(value).decode()
        except (MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            pass  # show the letters in it
    text = payload.decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable() and letter != "\ufffd")
