"""What operators see of the arguments and the result of a task.

A handler names the parameters whose values no operator may see (`hide`). Two parties tell which
arguments those are: the producer, if it knows the handler (`Terms.hidden`), and the workers that
serve the queue, which announce it with their signatures. A value is hidden if either says so. If
neither is known, no argument is shown, because the next worker may hide any of them.

Producers and workers may have different versions of the handler, in which parameters were added,
renamed or moved. So in doubt a value is hidden, or all are withheld:

- A worker that announces no parameters, or in a form of a later release, may hide any of them. The
  same holds for what a root announces in place of the signatures beyond those that it remembers.
- While something is hidden and the producer does not know the handler, so is what no handler has a
  parameter for: it may be the hidden parameter of a version that is gone.
- A producer tells places. Which names they have in a map, only the producer knows: such a map is
  withheld. (Ours send arrays whenever they know the handler.)

The result may repeat what is hidden, so it is searched for the hidden values
(`maitred.redaction`). Failures were searched by the worker, which knew its handler.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import DecodeError, msgpack

from maitred.protocol.handler_shapes import known_shapes
from maitred.redaction import HIDDEN, Redaction, forms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maitred.protocol.handler_shapes import HandlerShape
    from maitred.protocol.inspection import Withheld

_decode: Final = msgpack.Decoder().decode
_encode: Final = msgpack.Encoder().encode

UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError, ValueError)

DEPTH_MAX: Final = 100
"""Deeper values are not searched for what is hidden; a result that has them is withheld."""

PLACE_DIGITS: Final = 9
"""Longest decimal number that may be the place of an argument."""

SEARCHED_BYTES: Final = 64 * 1024
"""Longest result that is searched for what is hidden: some 10 ms of the shard if it is text, some
150 ms if it is different numbers. A longer one is withheld."""


class ShownValue(NamedTuple):
    """Arguments or a result as msgpack, or why an operator does not see them."""

    body: bytes | None
    withheld: Withheld = ""


class HandlerKnowledge:
    """What is known of the handlers of a queue."""

    def __init__(self, shapes: Sequence[HandlerShape], *, is_complete: bool) -> None:
        self.shapes = shapes
        """Their parameters, those of the handler that was seen last first."""
        self.is_complete = is_complete
        """Whether workers have announced something, and each of them its parameters."""
        self._last: tuple[Collection[int] | None, ArgumentRules] | None = None

    @classmethod
    def of(cls, announced: list[bytes]) -> HandlerKnowledge:
        """Return what the signatures tell that workers announced, the last one first."""
        shapes = known_shapes(announced)
        return cls(shapes, is_complete=0 < len(announced) == len(shapes))

    @property
    def function(self) -> str:
        """The name of the function that was seen last; empty if none is known."""
        return self.shapes[0].function if self.shapes else ""

    @property
    def hides(self) -> bool:
        """Whether any of the handlers hides a parameter."""
        return any(shape.hidden for shape in self.shapes)

    def rules(self, hidden: Collection[int] | None) -> ArgumentRules:
        """Return which arguments are hidden, if the producer told these places, or nothing. Most
        tasks of a list have the same: those of the last one are kept."""
        if self._last is None or self._last[0] != hidden:
            self._last = hidden, ArgumentRules(hidden, self)
        return self._last[1]


class ArgumentRules:
    """Which arguments of a task are hidden, and how they are called."""

    __slots__ = (
        "hidden_names",
        "hidden_places",
        "hides",
        "is_by_place",
        "is_known",
        "known_names",
        "known_places",
        "names",
    )

    def __init__(self, hidden: Collection[int] | None, handlers: HandlerKnowledge) -> None:
        """`hidden` are the places that the producer told, or None."""
        shapes = [[name for name, *_ in shape.parameters] for shape in handlers.shapes]
        self.names = shapes[0] if shapes else []
        self.is_known = hidden is not None or handlers.is_complete
        self.hidden_places = set(hidden or ())
        self.hidden_names: set[str] = set()
        self.known_names: set[str] = {name for names in shapes for name in names}
        self.known_places = max(map(len, shapes), default=0)
        if hidden is not None:  # the producer knows what the others are
            self.known_places = sys.maxsize
        self.is_by_place = bool(hidden)
        """Whether the producer told hidden places, which say nothing of a map."""
        for shape, names in zip(handlers.shapes, shapes, strict=True):
            places = {at for at, name in enumerate(names) if name in shape.hidden}
            self.is_known = self.is_known and len(places) == len(set(shape.hidden))
            self.hidden_names.update(shape.hidden)
            self.hidden_places |= places
        self.hides = bool(self.hidden_places) or not self.is_known
        """Whether any argument may be hidden."""

    def is_hidden_name(self, name: object) -> bool:
        """Return whether the argument of this name in a map is hidden."""
        return name in self.hidden_names or (self.hides and name not in self.known_names)

    def is_hidden_place(self, place: int) -> bool:
        """Return whether the argument at this place of an array is hidden."""
        return place in self.hidden_places or (self.hides and place >= self.known_places)


class TaskArguments:
    """The arguments of one task, without those that are hidden."""

    __slots__ = ("_is_readable", "_rules", "_values")

    def __init__(
        self, payload: bytes, hidden: Collection[int] | None, handlers: HandlerKnowledge
    ) -> None:
        """`hidden` are the places that the producer told, or None."""
        self._rules = handlers.rules(hidden)
        self._is_readable = True
        self._values: Any = None
        try:
            self._values = _decode(payload)
        except UNREADABLE:
            self._is_readable = False

    @property
    def hides(self) -> bool:
        """Whether any argument may be hidden."""
        return self._rules.hides

    def shown(self) -> ShownValue:
        """Return the arguments for operators: by name, if the names are known."""
        if not self._is_readable:
            return ShownValue(None, "unreadable")
        if not self._is_shown:
            return ShownValue(None, "unknown")
        values = self._values
        told: Any = values
        if isinstance(values, dict):
            told = {
                name: HIDDEN if self._rules.is_hidden_name(name) else value
                for name, value in values.items()
            }
        elif isinstance(values, list):
            told = [
                HIDDEN if self._rules.is_hidden_place(at) else one for at, one in enumerate(values)
            ]
            if len(told) <= len(self._rules.names):
                told = dict(zip(self._rules.names, told, strict=False))
        try:
            return ShownValue(_encode(told))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return ShownValue(None, "unreadable")

    def value(self, name: str) -> tuple[bool, Any]:
        """Return whether there is an argument of this name, or at this place, that is not hidden;
        and its value."""
        values = self._values
        if not self._is_readable or not self._is_shown:
            return False, None
        if isinstance(values, dict):
            if name in values and not self._rules.is_hidden_name(name):
                return True, values[name]
        elif isinstance(values, list):
            place = -1
            if name in self._rules.names and len(values) <= len(self._rules.names):
                place = self._rules.names.index(name)
            elif name.isascii() and name.isdecimal() and len(name) <= PLACE_DIGITS:
                place = int(name)
            if 0 <= place < len(values) and not self._rules.is_hidden_place(place):
                return True, values[place]
        return False, None

    def result(self, body: bytes) -> ShownValue:
        """Return a result for operators, without hidden values."""
        if not self.hides:
            return ShownValue(body)
        hidden = self._hidden_values() if self._is_readable and self._is_shown else None
        if hidden is None:
            return ShownValue(None, "unknown")
        if len(body) > SEARCHED_BYTES:
            return ShownValue(None, "size")
        search = _ResultSearch(Redaction(hidden))
        try:
            return ShownValue(_encode(search.redacted(_decode(body), DEPTH_MAX)))
        except (*UNREADABLE, TypeError, OverflowError):
            return ShownValue(None, "unreadable")

    @property
    def _is_shown(self) -> bool:
        """Whether it is known which of these arguments are hidden."""
        if isinstance(self._values, dict):
            return self._rules.is_known and not self._rules.is_by_place
        return self._rules.is_known and (isinstance(self._values, list) or not self._rules.hides)

    def _hidden_values(self) -> list[Any] | None:
        """Return the values of the hidden parameters; None if one of them is not known, such as a
        default of the handler."""
        values = self._values
        if isinstance(values, list):
            if any(at >= len(values) for at in self._rules.hidden_places):
                return None
            return [one for at, one in enumerate(values) if self._rules.is_hidden_place(at)]
        if self._rules.hidden_names.issubset(values):
            return [one for name, one in values.items() if self._rules.is_hidden_name(name)]
        return None


class _ResultSearch:
    """Removes hidden values from a result."""

    __slots__ = ("_others", "_redaction")

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._others: dict[tuple[type, Any], bool] = {}
        """Whether a number or a moment is hidden: large results repeat them."""

    def redacted(self, value: Any, depth: int) -> Any:  # noqa: ANN401 - a part of a result
        """Return the value without hidden ones; raise `RecursionError` if it is too deep."""
        if not depth:
            raise RecursionError
        if isinstance(value, dict):
            return {
                self.redacted(key, depth - 1): self.redacted(one, depth - 1)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self.redacted(one, depth - 1) for one in value]
        if isinstance(value, tuple):  # an array that is the key of a map
            return tuple(self.redacted(one, depth - 1) for one in value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._redaction.text(value)
        if isinstance(value, bytes):
            return HIDDEN if self._is_in_bytes(value) else value
        if isinstance(value, msgpack.Ext):
            return HIDDEN if self._is_in_bytes(bytes(value.data)) else value
        kind = type(value), value
        if kind not in self._others:
            self._others[kind] = any(map(self._is_in, forms(value)))
        return HIDDEN if self._others[kind] else value

    def _is_in(self, text: str) -> bool:
        return self._redaction.text(text) != text

    def _is_in_bytes(self, value: bytes) -> bool:
        """Return whether bytes have a hidden value: as text, or the bytes of a hidden one, which
        are known in hexadecimal."""
        texts = value.decode(errors="replace"), value.decode("latin-1"), value.hex()
        return any(map(self._is_in, texts))
