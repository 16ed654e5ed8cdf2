"""A handler's parameters and result, encoded and decoded.

The arguments of a call are encoded as one msgpack array, in the order of the parameters. Those that
the caller left out at the end are left out there, too, and the worker's own defaults apply. The
encoded arguments are decoded once more before they are sent, by the same decoder that the worker
has: arguments that do not fit are refused where the caller can still correct them. That costs a
fifth of a microsecond.

So a handler stays compatible with tasks that wait in the queue as long as parameters are added at
the end, with a default, and keep their types. `*args` and `**kwargs` have no fixed order or type,
and are refused. Nothing is ever pickled.

Queries from other clients may name their arguments instead: then they are a msgpack map.

A generator, async or not, is a stream of rows: a query gets them one by one, a task the list of
them.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
)
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import msgpack
from msgspec.structs import astuple

from maitred.app.described import described
from maitred.client.shapes import MAPS, misfit, missing
from maitred.errors import InvalidArguments, InvalidHandler, InvalidResult
from maitred.protocol.messages import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)

_STREAMS: Final = (AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator)
"""Return types that a generator may be annotated with."""

_NOTHING: Final[dict[str, Any]] = {}
"""Shared, and never changed: a new one for each task would be one more object for the garbage
collector."""

encode: Final = msgpack.Encoder().encode
"""Encodes arguments and results."""


class Signature:
    """What is known of a function without calling it; made once."""

    __slots__ = (
        "_defaults",
        "_described",
        "_named_from",
        "_parameters",
        "_places",
        "_read_arguments",
        "_read_named",
        "_read_result",
        "_read_row",
        "_required",
        "function",
        "is_async",
        "is_stream",
        "name",
        "names",
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", repr(function))
        if not inspect.isroutine(function):
            raise self._refused("it is not a function", remedy="Write a function that calls it.")
        is_async_generator = inspect.isasyncgenfunction(function)
        self.is_stream = is_async_generator or inspect.isgeneratorfunction(function)
        """Whether the function is a generator, which yields rows."""
        self.is_async = is_async_generator or inspect.iscoroutinefunction(function)
        parameters, hints = self._inspected(function)
        result = hints.get("return", Any)
        row = self._row(result) if self.is_stream else Any
        if self.is_stream:
            result = list[row]  # type: ignore[valid-type]
        self.names = tuple(one.name for one in parameters)
        """The parameters, in the order in which a call encodes them."""
        self._places = {
            one.name: place
            for place, one in enumerate(parameters)
            if one.kind is not one.POSITIONAL_ONLY
        }
        self._named_from = sum(one.kind is not one.KEYWORD_ONLY for one in parameters)
        """Index from which on parameters have to be named in a call."""
        self._required = sum(one.default is one.empty for one in parameters)
        self._defaults = [one.default for one in parameters]
        self._parameters = [
            (one.name, hints.get(one.name, Any), one.default is one.empty) for one in parameters
        ]
        self._described: dict[tuple[str, ...], bytes] = {}
        """Shapes by the hidden parameters: handlers of several queues may share a function."""
        for name, hint, _ in self._parameters:
            self._check(hint, f"parameter {name!r}")
        self._check(result, "result")
        try:
            fields = [_field(place, one, hints) for place, one in enumerate(parameters)]
            shape = msgspec.defstruct(
                "Arguments", fields, array_like=True, forbid_unknown_fields=True
            )
            named = msgspec.defstruct(
                "Arguments",
                fields,
                rename={f"p{place}": name for place, name in enumerate(self.names)},
                forbid_unknown_fields=True,
            )
            self._read_arguments = msgpack.Decoder(shape).decode
            self._read_named = msgpack.Decoder(named).decode
            self._read_result = msgpack.Decoder(result).decode
            self._read_row = msgpack.Decoder(row).decode
        except (TypeError, ValueError) as problem:
            raise self._refused(str(problem).rstrip(".")) from None

    # Arguments

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the parameters that have one, by name."""
        named = zip(self.names, self._defaults, strict=True)
        return {name: one for name, one in named if one is not inspect.Parameter.empty}

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call; raise `InvalidArguments` if they do not fit."""
        if kwargs or len(args) > self._named_from:
            values: Any = self._in_order(args, kwargs)
        else:
            values = args
        try:
            payload = encode(values)
        except UNWRITABLE as problem:
            raise self._unwritable(values, problem) from None
        try:
            self._read_arguments(payload)
        except UNREADABLE as problem:
            raise self._misfit(problem) from None
        return payload

    def read(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode an array or a map to the arguments of a call; raise `InvalidArguments` if it does
        not fit."""
        read = self._read_arguments
        if payload and payload[0] in MAPS:
            read = self._read_named
        try:
            values = astuple(read(payload))
        except UNREADABLE as problem:
            raise self._misfit(problem) from None
        border = self._named_from
        if border == len(values):
            return values, _NOTHING
        return values[:border], dict(zip(self.names[border:], values[border:], strict=True))

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        names = self.names
        if len(args) > self._named_from:
            raise InvalidArguments(
                f"{self.name} takes {self._named_from} arguments without a name, not {len(args)}."
            )
        values = list(args)
        unset = object()
        values += [unset] * (len(names) - len(args))
        last = len(args)
        for name, value in kwargs.items():
            place = self._places.get(name)
            if place is None:
                raise InvalidArguments(f"{self.name} has no parameter {name!r}.")
            if place < len(args):
                raise InvalidArguments(f"{self.name} got its argument {name!r} twice.")
            values[place] = value
            last = max(last, place + 1)
        del values[last:]
        for place, value in enumerate(values):
            if value is unset:
                if self._defaults[place] is inspect.Parameter.empty:
                    raise missing(self.name, names[place])
                values[place] = self._defaults[place]
        return values

    def _unwritable(self, values: Any, problem: Exception) -> InvalidArguments:  # noqa: ANN401
        for name, value in zip(self.names, values, strict=False):
            try:
                encode(value)
            except UNWRITABLE:
                return InvalidArguments(
                    f"The argument {name!r} of {self.name} cannot be serialised: "
                    f"{str(problem).rstrip('.')}.",
                    remedy="Give it plain values, dataclasses or msgspec Structs.",
                )
        return InvalidArguments(f"The arguments of {self.name} cannot be serialised: {problem}.")

    def _misfit(self, problem: Exception) -> InvalidArguments:
        return misfit(problem, self.name, self.names, self._required)

    def describe(self, hidden: tuple[str, ...] = ()) -> bytes:
        """Return the shape of the parameters (`client/shapes.py`), with the names of those that a
        handler hides; empty if any arguments are accepted."""
        shape = self._described.get(hidden)
        if shape is None:
            shape = self._described[hidden] = described(self.name, self._parameters, hidden)
        return shape

    # Results

    def read_result(self, body: bytes) -> Any:  # noqa: ANN401 - what the annotation says
        """Decode what the handler returned, for a stream the list of its rows; raise
        `InvalidResult`."""
        try:
            return self._read_result(body)
        except UNREADABLE as problem:
            raise self._other_result(problem) from None

    def read_row(self, body: bytes | memoryview) -> Any:  # noqa: ANN401 - what the annotation says
        """Decode one row of a stream; raise `InvalidResult` if it does not fit."""
        try:
            return self._read_row(body)
        except UNREADABLE as problem:
            raise self._other_result(problem) from None

    def _other_result(self, problem: Exception) -> InvalidResult:
        return InvalidResult(
            f"The result does not fit the return annotation of {self.name}: {problem}.",
            remedy="Does the worker run another version of it?",
        )

    # Decoration

    def _row(self, hint: Any) -> Any:  # noqa: ANN401 - an annotation, and another one
        """Return the type of a generator's rows."""
        if hint is Any:
            return Any
        kind = get_origin(hint) or hint
        if kind not in _STREAMS:
            raise self._refused(
                "it is a generator, but its return annotation is not an iterator",
                remedy="Annotate it with Iterator[...] or AsyncIterator[...], or not at all.",
            )
        arguments = get_args(hint)
        return arguments[0] if arguments else Any

    def _inspected(
        self, function: Callable[..., Any]
    ) -> tuple[list[inspect.Parameter], dict[str, Any]]:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as problem:
            raise self._refused(f"it is not a function with a signature ({problem})") from None
        for one in parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                sign, kind = ("*", "list") if one.kind is one.VAR_POSITIONAL else ("**", "dict")
                raise self._refused(
                    f"it takes {sign}{one.name}", remedy=f"Take a {kind} as a parameter."
                )
        optional = False
        for one in parameters:
            if one.default is not one.empty:
                optional = True
            elif optional:
                raise self._refused(
                    f"its parameter {one.name!r} has no default and follows one that has",
                    remedy="Give it a default, too.",
                )
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception as problem:  # noqa: BLE001 - annotations are code, and may raise anything
            raise self._refused(
                f"its annotations cannot be read: {problem}",
                remedy="What they name has to be there when the decorator runs: import it outside "
                "of TYPE_CHECKING, and define it before the handler.",
            ) from None
        self._check_annotated(parameters, hints)
        if hints.get("return") is type(None):
            hints["return"] = None
        return parameters, hints

    def _check_annotated(
        self, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
    ) -> None:
        bare = next((one.name for one in parameters if one.name not in hints), None)
        if bare is None:
            return
        if bare == parameters[0].name and bare in ("self", "cls"):
            raise self._refused(
                f"it is a method, and its callers have nothing to pass as {bare!r}",
                remedy="Write a function that calls the method.",
            )
        raise self._refused(
            f"its parameter {bare!r} has no annotation",
            remedy=f"Annotate it, as in `{bare}: int`; `Any` takes whatever msgpack carries.",
        )

    def _check(self, hint: object, what: str) -> None:
        try:
            custom = next(_custom(msgspec.inspect.type_info(hint)), None)
        except Exception as problem:  # noqa: BLE001 - a user's type may raise anything
            raise self._refused(f"its {what} cannot be serialised: {problem}") from None
        if custom is not None:
            raise self._refused(
                f"its {what} is or contains the type {getattr(custom, '__name__', custom)!s}, "
                "which cannot be serialised",
                remedy="Use builtins, dataclasses, msgspec Structs, or what else msgspec supports.",
            )

    def _refused(self, why: str, remedy: str | None = None) -> InvalidHandler:
        return InvalidHandler(f"{self.name} cannot be a handler: {why}.", remedy=remedy)


def _field(
    place: int, parameter: inspect.Parameter, hints: Mapping[str, Any]
) -> tuple[str, Any] | tuple[str, Any, Any]:
    hint = hints.get(parameter.name, Any)
    name = f"p{place}"  # parameters may have names that fields must not have
    default = parameter.default
    if default is parameter.empty:
        return name, hint
    return name, hint, msgspec.field(default_factory=lambda: default)


def _custom(info: msgspec.inspect.Type) -> Iterator[type]:
    """Yield the classes in a type that msgspec cannot encode."""
    seen: list[object] = []
    todo: list[object] = [info]
    while todo:
        one = todo.pop()
        if any(one is other for other in seen):
            continue
        seen.append(one)
        if isinstance(one, msgspec.inspect.CustomType):
            yield one.cls
        elif isinstance(one, msgspec.Struct):
            todo += [getattr(one, name) for name in one.__struct_fields__]
        elif isinstance(one, tuple | list):
            todo += one
