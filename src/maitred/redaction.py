"""Hidden arguments of handlers, and how texts are kept free of them.

A handler names parameters whose values are private (`hide`). Texts about its calls are written by
others: an exception quotes the value that it did not like, a library puts its request into its
message, a handler logs more than it should. So the values of the hidden parameters are looked for
in every such text before anybody sees it. `Redaction` is the only place where that is decided.

What holds for a redacted text, with upper and lower case alike (`tests/test_redaction.py`):

- No `RUN_LETTERS` consecutive characters of a hidden value are left, whether the text has the value
  whole, in part or cut, as it is or in one of its `forms`. Only runs without any letter or digit
  stay: they tell nothing, and tracebacks are full of them.
- A value that is shorter than that, or has neither letter nor digit, is not left as a word of its
  own, nor is so short a line of a value of several lines.
- If a value is too large to look for, or cannot be read, nothing of the text is left.

A text that was computed from the value is not recognised: the last four digits of a number, a hash,
the letters in another order, or another encoding than those of `forms`.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.errors import InvalidArgument, UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HIDDEN: Final = "[hidden]"
"""Stands in a text where a part of a hidden value was."""

RUN_LETTERS: Final = 6
"""Consecutive characters by which a part of a hidden value is recognised. Fewer would remove
ordinary words from every message; more would leave more of a value that was cut."""

LETTERS_MAX: Final = 16_384
"""Most characters of a call's hidden values, in all their different forms: with more, a failed call
would keep the event loop for too long. So many take some 30 ms on a busy machine, and 1.5 MB."""

VALUES_MAX: Final = 1_000
"""Most hidden values of a call, with the elements of lists and maps counted one by one."""

_WORD: Final = re.compile(r"[^\W_]+")
_RESERVED: Final = re.compile(r"[^\w.~-]", re.ASCII)
"""What a URL has only with percent-encoding."""
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d|[-+]?P\d|[-+]?PT\d", re.IGNORECASE)
"""How a date, a time or a duration begins as msgpack carries it."""
MOMENT_LETTERS_MAX: Final = 64
"""Longest text that may be a moment or a duration; with all digits, they have about 40."""

_read: Final = msgspec.msgpack.Decoder().decode


def hidden_parameters(
    parameters: tuple[str, ...],
    hide: object,
    handler: str,
    defaults: Mapping[str, Any] | None = None,
) -> HiddenParameters | None:
    """Return the parameters of a handler that its option `hide` names; None if it names none.
    `defaults` are those of all its parameters that have one.

    Raises `InvalidArgument` unless it is a list of names, and `UnknownChoice` for a name that the
    handler has no parameter of.
    """
    if not isinstance(hide, list | tuple | set | frozenset) or not all(
        isinstance(name, str) for name in hide
    ):
        raise InvalidArgument(
            f"The option 'hide' of {handler} is {hide!r:.80}; it has to be a list of parameters.",
            remedy=f"Write hide=[{hide!r:.80}]." if isinstance(hide, str) else None,
        )
    for name in hide:
        if name not in parameters:
            raise UnknownChoice.named(f"parameter of {handler}", name, parameters)
    return HiddenParameters(parameters, frozenset(hide), defaults) if hide else None


class HiddenParameters:
    """The hidden parameters of one handler; finds their values in the encoded arguments of a
    call."""

    __slots__ = ("_defaults", "_place_of", "names", "places")

    def __init__(
        self,
        parameters: tuple[str, ...],
        names: frozenset[str],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = names
        self._place_of = {name: parameters.index(name) for name in names}
        self.places = tuple(sorted(self._place_of.values()))
        """The places of the parameters in a call, from 0 on."""
        self._defaults = {
            name: _carried(value) for name, value in (defaults or {}).items() if name in names
        }
        """The values of parameters that a call leaves out, as msgpack would carry them."""

    def redaction(self, payload: bytes) -> Redaction:
        """Return what removes the hidden values of this call from texts."""
        try:
            arguments = _read(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Redaction(None)
        given: dict[str, Any]
        if isinstance(arguments, dict):
            given = {name: arguments[name] for name in self.names if name in arguments}
        elif isinstance(arguments, list):
            places, most = self._place_of.items(), len(arguments)
            given = {name: arguments[place] for name, place in places if place < most}
        else:
            return Redaction(None)
        return Redaction(list((self._defaults | given).values()))


class Redaction:
    """Removes the hidden values of one call from texts."""

    __slots__ = ("_others", "_runs", "_withholds", "_words")

    def __init__(self, values: list[Any] | None) -> None:
        """`values` are plain ones, as msgpack decodes them. None: they are not known, so whole
        texts are withheld."""
        self._runs: set[str] = set()
        """All parts of `RUN_LETTERS` characters."""
        self._words: set[str] = set()
        """Shorter values that are words."""
        self._others: set[str] = set()
        """Short values with other characters than letters and digits, and long ones with nothing
        else."""
        self._withholds = values is None
        letters = 0
        for count, leaf in enumerate(_leaves(values)):
            for form in dict.fromkeys(map(_folded, forms(leaf))):
                letters += len(form)
                if letters > LETTERS_MAX or count >= VALUES_MAX:
                    self._withholds = True
                    return
                self._learn(form)

    def _learn(self, form: str) -> None:
        if not form.strip():
            return
        if len(form) < RUN_LETTERS or not _WORD.search(form):
            (self._words if _WORD.fullmatch(form) else self._others).add(form)
            return
        self._runs |= {
            run
            for start in range(len(form) - RUN_LETTERS + 1)
            if (run := form[start : start + RUN_LETTERS]).isalnum() or _WORD.search(run)
        }

    def text(self, text: str) -> str:
        """Return the text without the hidden values."""
        if self._withholds:
            return HIDDEN if text else text
        pieces: list[str] = []
        kept_from = 0
        for start, end in _joined(self._found(_folded(text))):
            pieces += (text[kept_from:start], HIDDEN)
            kept_from = end
        pieces.append(text[kept_from:])
        return "".join(pieces)

    def value(self, value: object) -> object:
        """Return a value for a log line without the hidden values: itself if it has none of them,
        otherwise its text without them."""
        try:
            told = value if isinstance(value, str) else repr(value)
        except Exception:  # noqa: BLE001 - a repr of user code
            return f"<{type(value).__name__}>"
        shown = self.text(told)
        plain = value is None or isinstance(value, str | int | float)
        return value if plain and shown == told else shown

    def _found(self, text: str) -> list[tuple[int, int]]:
        runs = self._runs
        found = [
            (start, start + RUN_LETTERS)
            for start in range(len(text) - RUN_LETTERS + 1)
            if text[start : start + RUN_LETTERS] in runs
        ]
        if self._words:
            found += [word.span() for word in _WORD.finditer(text) if word.group() in self._words]
        for other in self._others:
            start = text.find(other)
            while start >= 0:
                found.append((start, start + len(other)))
                start = text.find(other, start + 1)
        return sorted(found)


def _joined(found: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text that overlap or touch as one."""
    if not found:
        return
    start, end = found[0]
    for other_start, other_end in found:
        if other_start > end:
            yield start, end
            start = other_start
        end = max(end, other_end)
    yield start, end


def _carried(default: object) -> Any:  # noqa: ANN401 - whatever msgpack carries
    """Return the default of a parameter as msgpack would carry it, or else its text."""
    try:
        return _read(msgspec.msgpack.encode(default))
    except Exception:  # noqa: BLE001 - a user's class, whose attributes may do anything
        return repr(default)


def _leaves(value: Any) -> Iterator[Any]:  # noqa: ANN401 - whatever msgpack carries
    """Yield the values that are no lists or maps. The keys of a map are values, too."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.keys()
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        elif isinstance(one, msgspec.msgpack.Ext):
            todo.append(bytes(one.data))
        elif one is not None:
            yield one


def forms(value: object) -> list[str]:
    """Return the texts by which a plain value is recognised: as it is, as Python and JSON quote it,
    percent-encoded as in a URL; dates, times and durations also as Python writes them, bytes also
    as text, in hexadecimal and in base64."""
    if isinstance(value, bytes):
        told = [repr(value)[2:-1], value.hex(), _base64(value)]
        try:
            return told + forms(value.decode())
        except UnicodeDecodeError:
            return told
    if isinstance(value, str):
        return [
            value,
            repr(value)[1:-1],
            ascii(value)[1:-1],
            msgspec.json.encode(value).decode()[1:-1],
            _json_ascii(value),
            *_percent_encoded(value),
            *_moment_forms(value),
            *_short_lines(value),
        ]
    if isinstance(value, datetime):
        return [value.isoformat(), *_python_forms(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value), f"{value:,}"]
    if isinstance(value, float):
        return [repr(value), f"{value:g}", f"{value:.2f}"]
    return [repr(value)]


def _base64(value: bytes) -> str:
    return msgspec.json.encode(value).decode()[1:-1]


def _json_ascii(value: str) -> str:
    """As `json.dumps` quotes a text: in ASCII, with a surrogate pair for a rare character."""
    quoted = msgspec.json.encode(value).decode()[1:-1]
    if quoted.isascii():
        return quoted
    pieces = []
    for letter in quoted:
        units = letter.encode("utf-16-be")
        escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        pieces.append(letter if letter.isascii() else escaped)
    return "".join(pieces)


def _percent_encoded(value: str) -> list[str]:
    encoded = _RESERVED.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode()), value
    )
    return [encoded, encoded.replace("%20", "+"), encoded.replace("%2F", "/")]


def _short_lines(value: str) -> list[str]:
    """Return the lines of a text of several lines that are too short to be recognised by a part of
    them: the traceback of a group of exceptions indents every line."""
    lines = value.splitlines()
    if len(lines) == 1:
        return []
    return [line for line in lines if len(line) < RUN_LETTERS and _WORD.search(line)]


def _moment_forms(value: str) -> list[str]:
    """Return the texts that Python has for a date, a time or a duration. msgpack carries them as
    text, and the handler gets the object."""
    if len(value) > MOMENT_LETTERS_MAX or not _MOMENT.match(value):
        return []
    told = []
    kinds: tuple[type[datetime | date | time | timedelta], ...] = (datetime, date, time, timedelta)
    for kind in kinds:
        try:
            told += _python_forms(msgspec.convert(value, kind))
        except (msgspec.MsgspecError, ValueError, OverflowError):
            continue
    return told


def _python_forms(moment: datetime | date | time | timedelta) -> list[str]:
    """Return the text of the object, and the arguments in its `repr`. Its class is left out: it
    tells nothing, and `datetime` is a word of many tracebacks."""
    arguments = repr(moment).partition("(")[2][:-1]
    return [str(moment), arguments.partition(", tzinfo=")[0]]


def _folded(text: str) -> str:
    """Return the text in lower case, letter by letter, so that it keeps its length."""
    if text.isascii():
        return text.lower()
    return "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)
