"""The query table of a gateway: what was asked, by whom, and what became of it.

It is bounded: when it is full, the queries that are over longest make room. Those that are under
way are never dropped; how many there may be is a limit of its own, and whoever comes then is
refused. What a query says is kept only as far as it is shown, and made readable when somebody
looks: most are never looked at.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, Struct, json, msgpack

from maitred.dispatch.query_states import FOLLOWS, UNDER_WAY
from maitred.errors import Overloaded
from maitred.protocol.queries import QueryFilter, QueryRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.dispatch.ask import Ask
    from maitred.dispatch.query_states import Status
    from maitred.settings import Querying

BUSY_RETRY_SECONDS: Final = 0.5
"""When to come back if there is no room for a query under way."""

MASKED: Final = "***"
_ERROR_LETTERS: Final = 500
_BYTES_A_LETTER: Final = 4
_decode: Final = msgpack.Decoder().decode


class QueryEntry(Struct, gc=False):
    """One query, while it is in the table."""

    sequence: int
    namespace: str
    queue: str
    user: str
    connection: str
    priority: int
    text: str
    payload: bytes
    """As much of it as is needed to show it."""
    bytes_in: int
    received_at: float
    changed_at: float
    status: Status = "waiting"
    sent_at: float = 0.0
    returned_at: float = 0.0
    worker: str = ""
    error: str = ""
    bytes_out: int = 0
    attempts: int = 0
    relayed: bool = False


class QueryTable:
    """Numbers queries from 1 on, and remembers them."""

    def __init__(self, settings: Querying, gateway: str, name: str = "") -> None:
        self.gateway = gateway
        """The first eight letters of its session in hexadecimal."""
        self.name = name
        self.under_way = 0
        self.most_under_way = settings.under_way
        self.counts: dict[str, int] = dict.fromkeys(FOLLOWS, 0)
        """How often each status was reached."""
        self.relayed = 0
        """How often a query went through the node."""
        self._most = settings.table_rows
        self._letters = settings.text_letters
        self._kept_bytes = 0 if settings.mask else settings.text_letters * _BYTES_A_LETTER
        self._mask = settings.mask
        self._entries: dict[int, QueryEntry] = {}
        self._over: deque[int] = deque()
        self._next = 1

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    # Changes

    def check_room(self) -> None:
        """Whether one more may be under way; `Overloaded` if not."""
        if self.under_way >= self.most_under_way:
            raise Overloaded(
                f"{self.under_way:,} queries are under way at this gateway already; this one was "
                "not begun.",
                remedy="Come back later, or raise under_way.",
                retry_after=BUSY_RETRY_SECONDS,
            )

    def enter(self, ask: Ask, wall: float) -> QueryEntry:
        """A query has come; it waits."""
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
        """A hook made another query of it."""
        entry.namespace, entry.queue, entry.priority = ask.namespace, ask.queue, ask.priority
        entry.text = "" if self._mask else ask.text[: self._letters]
        entry.payload = b"" if ask.text else ask.payload[: self._kept_bytes]
        entry.bytes_in = len(ask.payload)

    def move(self, entry: QueryEntry, status: Status, wall: float) -> bool:
        """Give it another status; False, and nothing is changed, if that cannot follow."""
        if status not in FOLLOWS[entry.status]:
            return False
        entry.status = status
        entry.changed_at = wall
        self.counts[status] += 1
        if status not in UNDER_WAY:
            entry.returned_at = wall
            self.under_way -= 1
            self._over.append(entry.sequence)
            while len(self._entries) > self._most and self._over:
                del self._entries[self._over.popleft()]
        return True

    def fail(self, entry: QueryEntry, status: Status, error: str, wall: float) -> bool:
        """The same for an end that needs a reason."""
        if not self.move(entry, status, wall):
            return False
        entry.error = error[:_ERROR_LETTERS]
        return True

    # Looking

    def rows(self, wanted: QueryFilter | None = None) -> list[QueryRow]:
        """Those that match, the newest last."""
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
        """As people see it."""
        return QueryRow(
            gateway=self.gateway,
            sequence=entry.sequence,
            user=entry.user,
            connection=entry.connection,
            namespace=entry.namespace,
            queue=entry.queue,
            query=self._text(entry),
            priority=entry.priority,
            status=entry.status,
            received_at=entry.received_at,
            sent_at=entry.sent_at,
            returned_at=entry.returned_at,
            worker=entry.worker,
            error=entry.error,
            bytes_in=entry.bytes_in,
            bytes_out=entry.bytes_out,
            attempts=entry.attempts,
            relayed=entry.relayed,
            changed_at=entry.changed_at,
        )

    def _text(self, entry: QueryEntry) -> str:
        if self._mask:
            return MASKED
        text = entry.text or readable(entry.payload, whole=len(entry.payload) == entry.bytes_in)
        return text[: self._letters]


def readable(payload: bytes, *, whole: bool) -> str:
    """Arguments as people read them; of a part, the letters that are in it."""
    if whole:
        try:
            value = _decode(payload)
            # The query of the paper: one text.
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
                return value[0]
            return json.encode(value).decode()
        except (MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            pass  # then what can be read of it
    text = payload.decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable() and letter != "\ufffd")
