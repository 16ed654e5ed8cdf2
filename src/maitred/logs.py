"""The log of a process: lines for people on a terminal, one JSON object per line otherwise.

There is no global configuration: a part that logs gets a `Logger`. The time of a line comes from a
clock that is an argument, so the same code logs simulated moments in the simulation.

All processes of a node share one standard error. Each line is therefore handed to the system in
one write, past the buffers of the stream; lines up to 4 KiB (PIPE_BUF) never mix in a pipe, longer
ones only if the pipe is full just then. Logging never fails: a line that cannot be written is
counted, and the next one that can says how many were lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, cast

import msgspec
import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import format_exc_info

from maitred.errors import MaitredError, printable
from maitred.line_budget import LineBudget, left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from maitred.settings import Log

    Entry = MutableMapping[str, Any]

QUIET_SECONDS: Final = 1.0
"""Pause between two lines of an `OccasionalWarning`: a flood of refusals shows in the log within a
second, and costs one line a second."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_BLOCKS: Final = ("exception", "stack")
"""Fields of several lines, which a log for people shows below the line."""


class Logger(Protocol):
    """The methods for code that logs. Events are fixed sentences; what varies is in the fields."""

    def debug(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything can be told
    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def error(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401

    def exception(self, event: str, **fields: Any) -> object:  # noqa: ANN401
        """Log an error, with the traceback of the exception that is being handled."""

    def bind(self, **fields: Any) -> Logger:  # noqa: ANN401
        """Return a logger that adds these fields to every line."""


def logger(
    settings: Log,
    stream: TextIO | None = None,
    *,
    wall_clock: Callable[[], float] = time.time,
    **context: Any,  # noqa: ANN401
) -> Logger:
    """Return a logger that writes to the stream (standard error), with `context` in every line."""
    stream = sys.stderr if stream is None else stream
    tty = stream.isatty()
    human = settings.format == "human" or (settings.format == "auto" and tty)
    render: list[Any] = (
        [
            _for_people,
            ConsoleRenderer(
                colors=tty and wants_colour(os.environ), exception_formatter=plain_traceback
            ),
        ]
        if human
        else [_as_json]
    )
    made = structlog.wrap_logger(
        _Lines(stream, human=human),
        processors=[_Opening(wall_clock), format_exc_info, *render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return cast("Logger", made.bind(**context))


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Whether to use colours: unless NO_COLOR is set (no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def silent() -> Logger:
    """Return a logger that writes nothing, for tests and simulations."""
    return _Silent()


class _Silent:
    def debug(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def info(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def error(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def exception(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401

    def bind(self, **_fields: Any) -> Logger:  # noqa: ANN401
        return self


class OccasionalWarning:
    """Logs one kind of event, which callers can provoke at will, at most once in `quiet_seconds`;
    each line has the number of those that were left out before it."""

    __slots__ = ("_budget", "_event", "_log")

    def __init__(self, log: Logger, event: str, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._log = log
        self._event = event
        self._budget = LineBudget(quiet_seconds)

    def say(self, now: float, **fields: Any) -> None:  # noqa: ANN401 - as loggers take them
        """Log the event with these fields, unless it was logged a moment ago."""
        unlogged = self._budget.take(now)
        if unlogged is not None:
            self._log.warning(self._event, **fields, **left_out(unlogged))


class _Opening:
    """Begins every line: time, level, event."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock

    def __call__(self, _logger: object, level: str, entry: Entry) -> Entry:
        line: Entry = {
            "timestamp": _moment(self._wall_clock()),
            "level": "error" if level == "exception" else level,
            "event": entry.pop("event", ""),
        }
        for key, value in entry.items():
            line[f"{key}_" if key in line else key] = value
        return line


def _moment(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # a clock that is years off
        return f"{seconds} s"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_json(_logger: object, _level: str, entry: Entry) -> str:
    try:
        plain = {key: _told(value) for key, value in entry.items()}
        return msgspec.json.encode(plain, enc_hook=repr).decode()
    except Exception:  # noqa: BLE001 - a cycle, half a character, a broken repr: a poor line, not none
        return json.dumps({key: _harmless(value) for key, value in entry.items()})


def _told(value: object) -> object:
    if isinstance(value, MaitredError):
        told = {"code": value.code, "sentence": value.sentence}
        return told | {"remedy": value.remedy} if value.remedy else told
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return value


def _harmless(value: object) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - a repr of user code
        return f"<{type(value).__name__}>"


def _for_people(_logger: object, _level: str, entry: Entry) -> Entry:
    """Escape control characters, so that nothing that a peer sent looks like another line or
    commands the terminal."""
    shown: Entry = {}
    for key, value in entry.items():
        if isinstance(value, MaitredError):
            shown[key] = printable(f"{value} [{value.code}]")
        elif isinstance(value, BaseException):
            shown[key] = printable(f"{type(value).__name__}: {value}")
        elif key in _BLOCKS and isinstance(value, str):
            # Indented, so that a line of an exception's text cannot pass for a line of the log.
            lines = value.rstrip("\n").split("\n")
            shown[key] = "\n".join(f"  {printable(line)}" for line in lines)
        elif isinstance(value, str):
            shown[key] = printable(value)
        else:
            shown[key] = printable(_harmless(value))
    return shown


class _Lines:
    """The end of the chain: one line, one write."""

    def __init__(self, stream: TextIO, *, human: bool) -> None:
        self._stream = stream
        self._human = human
        self._lost = 0
        self._torn = False
        try:
            self._file: int | None = stream.fileno()
        except (
            OSError,
            ValueError,
            AttributeError,
        ):  # a StringIO, say; also what pytest puts there
            self._file = None

    def write(self, line: str) -> None:
        text = f"{line}\n"
        if self._lost:
            text = self._losses() + text
        if self._torn:
            text = "\n" + text
        try:
            if self._file is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                self._write_past_the_buffers(self._file, text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._lost += 1
        else:
            self._lost, self._torn = 0, False

    debug = info = warning = error = exception = msg = log = write

    def _write_past_the_buffers(self, file: int, text: str) -> None:
        encoding = (self._human and self._stream.encoding) or "utf-8"
        rest = memoryview(text.encode(encoding, errors="backslashreplace"))
        while rest:
            rest = rest[os.write(file, rest) :]
            # If the next write fails, half a line stays behind.
            self._torn = bool(rest)

    def _losses(self) -> str:
        said = f"{self._lost} lines before this one could not be written"
        if self._human:
            return f"({said})\n"
        return json.dumps({"level": "error", "event": said}) + "\n"
