"""Answers of the imaginary node, in the classes of the API, so that they cannot differ in form from
those of a real node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, convert

from maitred.gateway.http.openapi import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Iterator

Shape = TypeVar("Shape")


def shaped(value: object, kind: type[Shape]) -> Shape:
    """Return plain data as an instance of a class; raise if a field is missing or of another type,
    or if the class does not have it."""
    read = convert(value, kind)
    strange = list(_unknown(value, read, kind.__name__))
    assert not strange, f"the API has no {', '.join(strange)}"
    return read


def answer_of(handler: str, value: dict[str, Any]) -> object:
    """Return what the API answers for a handler; handlers of users answer whatever they like."""
    ((_, kind),) = ANSWERS[handler].values()
    return value if kind is None else shaped(value, kind)


def _unknown(given: Any, read: object, where: str) -> Iterator[str]:  # noqa: ANN401
    """Yield what was given and is nowhere in what was read."""
    if isinstance(read, Struct) and not read.__struct_config__.array_like:
        known = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
        for name, value in given.items():
            if name in known:
                yield from _unknown(value, getattr(read, known[name]), f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(read, dict):
        for name, value in given.items():
            yield from _unknown(value, read[name], f"{where}[{name!r}]")
    elif isinstance(read, list):
        for value, each in zip(given, read, strict=True):
            if not isinstance(each, float | None):  # a long series of numbers
                yield from _unknown(value, each, f"{where}[]")
