"""Lines that handlers write with `logging`, in the format of the worker's log.

A handler logs as any Python code does. `maitred worker` puts a `LogHandler` on the root logger, so
that its lines come out beside the worker's own, in the same format, with queue, handler, task and
attempt (or the query) of the call that wrote them, and without its hidden arguments. A program that
runs a worker itself keeps its own logging, and may use the same class:

    logging.getLogger().addHandler(maitred.LogHandler())

A record is never dropped, however many there are: what a handler logs is its own decision. Logging
never fails: a record whose arguments do not fit its text is written as it is.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from maitred.app.attempt import running
from maitred.errors import UnknownChoice
from maitred.logs import logger
from maitred.settings import Log
from maitred.worker.outcomes import TRACEBACK_LETTERS

if TYPE_CHECKING:
    from maitred.app.attempt import Attempt
    from maitred.logs import Logger

_OWN: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""Attributes of every record; what else a record has was given as `extra`."""

_TAKEN: Final = frozenset({"event", "self"})
"""Names that the methods of a logger have for themselves."""

LogFormat = Literal["auto", "human", "json"]


class LogHandler(logging.Handler):
    """Writes records as lines of a maitred log, with the attempt that they belong to."""

    def __init__(
        self,
        log: Logger | None = None,
        *,
        format: LogFormat = "auto",  # noqa: A002 - as the setting is called
    ) -> None:
        """Without a `log`, write to standard error: for people on a terminal and in JSON otherwise,
        unless `format` says which. Which levels are written is decided by the loggers, as usual."""
        super().__init__()
        if format not in get_args(LogFormat):
            raise UnknownChoice.named("format of logs", str(format), get_args(LogFormat))
        self._log = log or logger(Log(format=format, level="debug"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record in the format of the worker's log, with the labels of the call."""
        try:
            self._write(record)
        except Exception as problem:  # noqa: BLE001 - logging must not fail the handler
            name, kind = record.name, type(problem).__name__
            self._log.error("a log record could not be written", logger=name, error=kind)

    def _write(self, record: logging.LogRecord) -> None:
        attempt: Attempt = running.get()
        fields: dict[str, Any] = {"logger": record.name}
        try:
            event = record.getMessage()
        except Exception as problem:  # noqa: BLE001 - arguments that do not fit the text
            event = str(record.msg)
            fields["format_error"] = f"{type(problem).__name__}: {problem}"
        for name, value in vars(record).items():
            if name not in _OWN:
                fields[f"{name}_" if name in _TAKEN else name] = value
        if record.exc_info and record.exc_info[0] is not None:
            lines = traceback.format_exception(*record.exc_info)
            fields["exception"] = "".join(lines)[-TRACEBACK_LETTERS:].rstrip("\n")
        elif record.exc_text:
            fields["exception"] = record.exc_text
        if record.stack_info:
            fields["stack"] = record.stack_info
        redaction = attempt.redaction()
        if redaction is not None:
            event = redaction.text(event)
            fields = {redaction.text(name): redaction.value(one) for name, one in fields.items()}
        labels = attempt.labels
        clashing = {f"{name}_": fields.pop(name) for name in labels if name in fields}
        write = getattr(self._log, _level(record.levelno))
        write(event, **(labels | clashing | fields))


def take_over(log: Logger, level: str) -> None:
    """Have the root logger of this process write to the worker's log, from this level on. Do so
    before user code is imported: its `logging.basicConfig()` then has no effect, as the standard
    library defines it, and its lines do not come twice."""
    root = logging.getLogger()
    root.addHandler(LogHandler(log))
    root.setLevel(level.upper())


def _level(number: int) -> str:
    """Return the level of maitred's logs for one of `logging`, which has more of them."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
