"""The audit log of one process: records go into a file that this process alone writes.

`record` only keeps a line in memory; a thread writes what has gathered, so a slow disk does not
block the event loop. If the disk is full, lines are kept up to a bound and written later; those
beyond it are dropped and counted. The node goes on, and reports it in its log and its counters.

Each process has a file of its own, so that no two of them have to agree on when to rotate:
`shard-0.jsonl` is written to, `shard-0.1.jsonl` is the one before it, and so on.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.security.audit_records import AuditBound, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.logs import Logger
    from maitred.security.audit_records import Kind
    from maitred.settings import Audit, Node

DROPPED: Final = "records dropped"
"""Action of a record that tells how many records were dropped."""

PENDING_MAX: Final = 10_000
"""Most records that wait for the disk; a few hundred bytes each."""

RETRY_SECONDS: Final = 1.0
"""Seconds until a failed write is tried again."""

TOLD_SECONDS: Final = 60.0
"""Seconds between two lines about failed writes in the node's log."""


class AuditFile:
    """Appends lines to a file, and rotates it. Only one thread at a time may call it."""

    def __init__(self, directory: Path, name: str, file_bytes: int, files: int) -> None:
        self._directory = directory
        self._name = name
        self._file_bytes = file_bytes
        self._files = files
        self._file = -1
        self._size = 0
        self._is_torn = False
        """Whether the last write ended in the middle of a line."""

    def _path(self, number: int = 0) -> Path:
        return self._directory / f"{self._name}{f'.{number}' if number else ''}.jsonl"

    def write(self, lines: bytes) -> None:
        """Append the lines; raise `OSError` if they cannot be written."""
        if self._file < 0:
            self._open()
        if self._size and self._size + len(lines) > self._file_bytes:
            self._rotate()
        rest = memoryview(b"\n" + lines if self._is_torn else lines)
        while rest:
            written = os.write(self._file, rest)
            self._size += written
            rest = rest[written:]
            self._is_torn = bool(rest)

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path(), flags, 0o600)
        os.fchmod(self._file, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._path(number - 1)
            if older.exists():
                older.replace(self._path(number))
        if self._files == 1:
            self._path().unlink(missing_ok=True)
        self._open()

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class AuditLog:
    """Records who did what, for one process."""

    def __init__(
        self,
        settings: Audit,
        file: AuditFile,
        log: Logger,
        wall_clock: Callable[[], float],
    ) -> None:
        self.queries = settings.queries
        """What a record tells of a query: nothing, a hash, or its text."""
        self.counts: Counter[str] = Counter()
        """Number of records that were `written` or `dropped`, and of writes that `failed`."""
        self._bound = AuditBound(settings.records_per_second)
        self._file = file
        self._log = log
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self._told_at = -inf

    def record(
        self,
        action: str,
        *,
        user: str = "",
        source: object = "",
        target: str = "",
        allowed: bool = True,
        kind: Kind = "action",
        details: Mapping[str, Any] | None = None,
        at: float | None = None,
    ) -> None:
        """Record that the user did this to the target, from that address. `allowed` says whether it
        was permitted, not whether it succeeded. `details` are further facts that JSON can hold, and
        never a secret. `at` is when it was done, in seconds since 1970; by default now."""
        kind = kind if allowed else "refused"
        if len(self._pending) >= PENDING_MAX:
            self._bound.dropped[kind] += 1
            self.counts["dropped"] += 1
            return
        if not self._bound.allows(kind, self._loop.time()):
            self.counts["dropped"] += 1
            return
        now = self._wall_clock()
        if self._bound.dropped:
            self._add(now, DROPPED, {"dropped": self._bound.told()}, allowed=True)
        fields = {"user": user, "from": str(source), "target": target, **(details or {})}
        self._add(now if at is None else at, action, fields, allowed=allowed)

    def _add(self, at: float, action: str, fields: dict[str, Any], *, allowed: bool) -> None:
        self._pending.append(encode_record(at, action, fields, allowed=allowed))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._pending:
                lines, self._pending = self._pending, []
                try:
                    data = b"".join(lines)
                    await self._loop.run_in_executor(None, self._file.write, data)
                except OSError as problem:
                    self._pending = lines + self._pending
                    self._failed(problem)
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    self.counts["written"] += len(lines)
        finally:
            self._writing = None

    def _failed(self, problem: OSError) -> None:
        self.counts["failed"] += 1
        now = self._loop.time()
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            waiting = len(self._pending)
            self._log.error("the audit log cannot be written", error=problem, waiting=waiting)

    async def close(self) -> None:
        """Write the remaining records, as far as the disk accepts them."""
        writing = self._writing
        if writing is not None:
            await asyncio.wait((writing,), timeout=RETRY_SECONDS)
            writing.cancel()
        dropped = self._bound.told()
        if dropped:
            told = {"dropped": dropped}
            self._pending.append(encode_record(self._wall_clock(), DROPPED, told, allowed=True))
        try:
            if self._pending:
                self._file.write(b"".join(self._pending))
                self.counts["written"] += len(self._pending)
                self._pending = []
        except OSError as problem:
            self._failed(problem)
        self._file.close()


def audit_log(
    settings: Node, process: str, log: Logger, wall_clock: Callable[[], float]
) -> AuditLog | None:
    """Return the audit log of the node's process of this name; None if auditing is off."""
    audit = settings.audit
    if audit.when == "never" or (audit.when == "users" and not settings.authenticates):
        return None
    directory = Path(audit.directory or Path(settings.data) / "audit")
    file = AuditFile(directory, process, audit.file_bytes, audit.files)
    return AuditLog(audit, file, log, wall_clock)
