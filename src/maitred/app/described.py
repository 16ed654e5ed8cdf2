"""The shape of a handler's parameters, for producers that do not have the function.

`client/shapes.py` defines shapes and reads them. This module makes them from the annotations.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect

from maitred.client.shapes import argument_check
from maitred.errors import InvalidHandler
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.queries import SIGNATURE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

DEPTHS: Final = (6, 2, 1)
"""How deep nested types are described. A lower depth is tried if the shape is too long; at last the
parameters are described by their names alone."""

_SCALARS: Final[dict[type[inspect.Type], str]] = {
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}
_LISTS: Final = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.CollectionType,
)


def described(
    function: str, parameters: Sequence[tuple[str, Any, bool]], hidden: Sequence[str] = ()
) -> bytes:
    """Describe names, types and optionality of the parameters, and which of them are `hidden`, in
    at most `SIGNATURE_BYTES`.

    Returns an empty shape if the names alone need more: such a handler is taken to accept any
    arguments. One that hides some of them is refused with `InvalidHandler` instead: what is hidden
    has to be known wherever operators look at its tasks.
    """
    infos = [(name, inspect.type_info(hint), required) for name, hint, required in parameters]
    for depth in (*DEPTHS, 0):
        told = [(name, _told(info, depth), required) for name, info, required in infos]
        shape = encode_shape(HandlerShape(function, told, list(hidden)))
        if len(shape) <= SIGNATURE_BYTES and argument_check(shape) is not None:
            return shape
    if hidden:
        raise InvalidHandler(
            f"{function} cannot be a handler that hides parameters: the names of its "
            f"{len(infos)} parameters need more than {SIGNATURE_BYTES:,} bytes.",
            remedy="Give it fewer parameters: one dataclass or Struct instead of many values.",
        )
    return b""


def _told(info: inspect.Type, depth: int) -> Any:  # noqa: ANN401 - as a shape has it
    if depth <= 0:
        return "any"
    scalar = _SCALARS.get(type(info))
    if scalar is not None:
        return scalar
    inner = depth - 1
    if isinstance(info, inspect.Metadata):
        return _told(info.type, depth)
    if isinstance(info, _LISTS):
        return ["list", _told(info.item_type, inner)]
    if isinstance(info, inspect.DictType):
        return ["dict", _told(info.key_type, inner), _told(info.value_type, inner)]
    if isinstance(info, inspect.TupleType):
        return ["tuple", *(_told(one, inner) for one in info.item_types)]
    if isinstance(info, inspect.UnionType):
        # A member that is described in part could match a value of another member.
        kinds = [_told(one, depth) for one in info.types]
        return "any" if "any" in kinds else ["union", *kinds]
    if isinstance(info, inspect.LiteralType):
        return ["values", *info.values]
    if isinstance(info, inspect.EnumType):
        return _values(info.cls)
    return _object(info, inner)


def _values(enum: type[Enum]) -> Any:  # noqa: ANN401 - as a shape has it
    values = [one.value for one in enum]
    plain = all(type(value) in (str, int) for value in values)
    has_others = enum._missing_.__func__ is not Enum._missing_.__func__  # type: ignore[attr-defined]
    return "any" if has_others or not plain or not values else ["values", *values]


def _object(info: inspect.Type, depth: int) -> Any:  # noqa: ANN401 - as a shape has it
    if isinstance(info, inspect.StructType):
        if info.array_like or info.tag is not None:
            return "any"
        strict = info.forbid_unknown_fields
    elif isinstance(info, inspect.DataclassType | inspect.TypedDictType):
        strict = False
    else:
        return "any"
    fields = [[one.encode_name, _told(one.type, depth), one.required] for one in info.fields]
    return ["object", fields, strict]
