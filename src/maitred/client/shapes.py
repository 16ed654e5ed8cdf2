"""Shapes of handlers: descriptions of their parameters, against which arguments are checked.

A worker announces the *shape* of each handler that it serves: the names of the parameters, which of
them have defaults, and their types as far as a shape can express them. A client that adds a task
for another program's handler, or for another version of its own, makes a decoder of the shape and
tries the arguments. The types are those of the handler, so the decoder refuses what the worker's
would, with the same sentence. A type without a word here is `any`: a shape may accept more than its
handler, and never less.

    [name of the function, [[name of the parameter, type, required], ...], [hidden parameter, ...]]

A type is one of `SCALARS`, or an array: `["list", type]`, `["dict", key, value]`,
`["tuple", type, ...]`, `["union", type, ...]`, `["values", value, ...]`, or
`["object", [[name, type, required], ...], whether other names are refused]`. An unknown word means
`any`, so that newer workers can announce more.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, Union
from uuid import UUID

import msgspec
from msgspec import Struct, msgpack

from maitred.errors import InvalidArguments, NoHandlerFits, printable
from maitred.protocol.handler_shapes import decode_shape
from maitred.protocol.messages import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.protocol.handler_shapes import HandlerShape

DEPTH_MAX: Final = 16
"""Types that are nested deeper count as `any`. Handlers announce less (`app/described.py`)."""

SCALARS: Final[dict[str, Any]] = {
    "any": Any,
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}

MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
"""First bytes of a msgpack map: arguments by name."""

_PLACE: Final = re.compile(r" - at `\$\[(\d+)\](.*)`$")
_NAMED_PLACE: Final = re.compile(r" - at `\$\.(\w+)(.*)`$")
_TOO_FEW: Final = re.compile(r"Expected `array` of (?:at least )?length \d+(?: to \d+)?, got (\d+)")
_LITERALS: Final = (str, int, type(None))


class ArgumentCheck:
    """Tries the arguments of tasks against one announced shape."""

    __slots__ = ("_names", "_read_array", "_read_map", "_required", "function")

    def __init__(self, shape: HandlerShape) -> None:
        self.function = printable(shape.function)
        self._names = tuple(printable(name) for name, _, _ in shape.parameters)
        self._required = sum(required for _, _, required in shape.parameters)
        self._read_array = msgpack.Decoder(_fields(shape.parameters, array=True)).decode
        self._read_map = msgpack.Decoder(_fields(shape.parameters)).decode

    def misfit(self, payload: bytes) -> NoHandlerFits | None:
        """Return why the handler would refuse these arguments; None if it would not."""
        named = bool(payload) and payload[0] in MAPS
        try:
            (self._read_map if named else self._read_array)(payload)
        except UNREADABLE as problem:
            found = misfit(problem, self.function, self._names, self._required)
            return NoHandlerFits(found.sentence, remedy=found.remedy)
        return None


def argument_check(announced: bytes) -> ArgumentCheck | None:
    """Make the check of an announced shape; None if it accepts anything, or is unknown."""
    try:
        return ArgumentCheck(decode_shape(announced)) if announced else None
    except (*UNREADABLE, TypeError, ValueError, msgspec.ValidationError):
        return None  # a newer or a faulty worker, which decides itself


def misfit(
    problem: Exception, function: str, names: Sequence[str], required: int
) -> InvalidArguments:
    """Translate a decoder's error about arguments: the sentence names the parameter."""
    text = str(problem)
    found = _PLACE.search(text)
    if found is not None and int(found[1]) < len(names):
        return _at(names[int(found[1])], found[2], function, text[: found.start()])
    found = _NAMED_PLACE.search(text)
    if found is not None and found[1] in names:
        return _at(found[1], found[2], function, text[: found.start()])
    found = _TOO_FEW.match(text)
    if found is not None and int(found[1]) < required:
        return missing(function, names[int(found[1])])
    return InvalidArguments(f"The arguments do not fit {function}: {text.rstrip('.')}.")


def missing(function: str, name: str) -> InvalidArguments:
    """Return the error of a call without an argument that has no default."""
    return InvalidArguments(f"{function} lacks its argument {name!r}.")


def _at(name: str, inside: str, function: str, text: str) -> InvalidArguments:
    where = f" (at {name}{inside})" if inside else ""
    return InvalidArguments(f"The argument {name!r} of {function} does not fit: {text}{where}.")


def _fields(
    named: Sequence[tuple[str, Any, bool]],
    depth: int = 0,
    *,
    array: bool = False,
    strict: bool = True,
) -> type[Struct]:
    """Make a class with these fields; those with a default may be left out."""
    fields: list[Any] = [
        (f"p{at}", _type(kind, depth), *(() if required else (None,)))
        for at, (_, kind, required) in enumerate(named)
    ]
    return msgspec.defstruct(
        "Arguments",
        fields,
        rename=None if array else {f"p{at}": name for at, (name, _, _) in enumerate(named)},
        array_like=array,
        forbid_unknown_fields=strict,
        kw_only=True,
    )


def _type(said: Any, depth: int) -> Any:  # noqa: ANN401 - a type, of an announced one
    if isinstance(said, str):
        return SCALARS.get(said, Any)
    if not isinstance(said, list) or not said or depth >= DEPTH_MAX:
        return Any
    kind, *rest = said
    if kind == "object":
        return _fields([(str(n), t, bool(r)) for n, t, r in rest[0]], depth + 1, strict=rest[1])
    if kind == "values":
        if not all(isinstance(value, _LITERALS) for value in rest):
            return Any
        return Literal[tuple(rest)]
    inner = [_type(one, depth + 1) for one in rest]
    if kind == "list":
        return list[inner[0]]  # type: ignore[valid-type]
    if kind == "dict":
        return dict[inner[0], inner[1]]  # type: ignore[valid-type]
    if kind == "tuple":
        return tuple[tuple(inner)]  # type: ignore[misc]
    if kind == "union" and Any not in inner:
        return Union[tuple(inner)]  # noqa: UP007 - made of values
    return Any
