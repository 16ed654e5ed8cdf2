"""What operators see of the arguments and the result of a task.

A handler names the parameters whose values no operator may see (`hide`). Two parties tell which
arguments those are: the producer, if it knows the handler (`Terms.hidden`), and the workers that
serve the queue, which announce it with their signatures. A value is hidden if either says so. If
neither is known, no argument is shown, because the next worker may hide any of them.

The result may repeat what is hidden, so it is searched for the hidden values
(`maitred.redaction`). Failures were searched by the worker, which knew its handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import DecodeError, msgpack

from maitred.redaction import HIDDEN, Redaction

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maitred.protocol.handler_shapes import HandlerShape
    from maitred.protocol.inspection import Withheld

_decode: Final = msgpack.Decoder().decode
_encode: Final = msgpack.Encoder().encode

UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError, ValueError)

DEPTH_MAX: Final = 100
"""Deeper values are not searched for what is hidden; a result that has them is withheld."""


class ShownValue(NamedTuple):
    """Arguments or a result as msgpack, or why an operator does not see them."""

    body: bytes | None
    withheld: Withheld = ""


class HandlerKnowledge(NamedTuple):
    """What is known of the handlers of a queue."""

    shapes: Sequence[HandlerShape]
    """Their parameters, those of the handler that was seen last first."""
    is_served: bool
    """Whether a worker has announced anything, also a handler that takes any arguments."""

    @property
    def function(self) -> str:
        """The name of the function that was seen last; empty if none is known."""
        return self.shapes[0].function if self.shapes else ""


class TaskArguments:
    """The arguments of one task, without those that are hidden."""

    def __init__(
        self, payload: bytes, hidden: Collection[int] | None, handlers: HandlerKnowledge
    ) -> None:
        self._names = (
            [name for name, *_ in handlers.shapes[0].parameters] if handlers.shapes else []
        )
        self._is_known = hidden is not None or handlers.is_served
        self._hidden_places = set(hidden or ())
        self._hidden_names: set[str] = set()
        for shape in handlers.shapes:
            names = [name for name, *_ in shape.parameters]
            self._hidden_names.update(shape.hidden)
            self._hidden_places.update(at for at, name in enumerate(names) if name in shape.hidden)
            self._hidden_names.update(names[at] for at in hidden or () if at < len(names))
        self._is_readable = True
        self._values: Any = None
        try:
            self._values = _decode(payload)
        except UNREADABLE:
            self._is_readable = False

    @property
    def hides(self) -> bool:
        """Whether any argument may be hidden."""
        return bool(self._hidden_places or self._hidden_names) or not self._is_known

    def shown(self) -> ShownValue:
        """Return the arguments for operators: by name, if the names are known."""
        if not self._is_readable:
            return ShownValue(None, "unreadable")
        if not self._is_known:
            return ShownValue(None, "unknown")
        values = self._without_hidden()
        if values is None:
            return ShownValue(None, "unknown")
        try:
            return ShownValue(_encode(values))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return ShownValue(None, "unreadable")

    def value(self, name: str) -> tuple[bool, Any]:
        """Return whether there is an argument of this name, or at this place, that is not hidden;
        and its value."""
        values = self._without_hidden() if self._is_readable and self._is_known else None
        if isinstance(values, dict) and name in values:
            place = self._names.index(name) if name in self._names else -1
            if name in self._hidden_names or place in self._hidden_places:
                return False, None
            return True, values[name]
        if isinstance(values, list) and name.isascii() and name.isdecimal():
            place = int(name)
            if place < len(values) and place not in self._hidden_places:
                return True, values[place]
        return False, None

    def result(self, body: bytes) -> ShownValue:
        """Return a result for operators, without hidden values."""
        if not self.hides:
            return ShownValue(body)
        if not self._is_readable or not self._is_known:
            return ShownValue(None, "unknown")
        hidden = self._hidden_values()
        if hidden is None:
            return ShownValue(None, "unknown")
        redaction = Redaction(hidden)
        try:
            return ShownValue(_encode(_redacted(_decode(body), redaction, DEPTH_MAX)))
        except (*UNREADABLE, TypeError, OverflowError):
            return ShownValue(None, "unreadable")

    def _without_hidden(self) -> Any:  # noqa: ANN401 - what the caller gave
        values = self._values
        if isinstance(values, dict):
            if self._hidden_places and not self._names:
                return None  # the producer told places, and no handler has told their names
            return {
                name: HIDDEN if name in self._hidden_names else value
                for name, value in values.items()
            }
        if not isinstance(values, list):
            return None if self.hides else values
        told = [HIDDEN if at in self._hidden_places else one for at, one in enumerate(values)]
        if len(told) <= len(self._names):
            return dict(zip(self._names, told, strict=False))
        return told

    def _hidden_values(self) -> list[Any] | None:
        """Return the values of the hidden parameters; None if one of them is not known, such as a
        default of the handler."""
        values = self._values
        if isinstance(values, list):
            if any(at >= len(values) for at in self._hidden_places):
                return None
            return [one for at, one in enumerate(values) if at in self._hidden_places]
        if isinstance(values, dict) and self._hidden_names.issubset(values) and self._names:
            return [one for name, one in values.items() if name in self._hidden_names]
        return None


def _redacted(value: Any, redaction: Redaction, depth: int) -> Any:  # noqa: ANN401 - a result
    if not depth:
        raise RecursionError
    if isinstance(value, dict):
        return {
            _redacted(key, redaction, depth - 1): _redacted(one, redaction, depth - 1)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted(one, redaction, depth - 1) for one in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        shown = redaction.text(value.decode("latin-1"))
        return value if shown == value.decode("latin-1") else HIDDEN
    return redaction.value(value)
