"""The shapes of all messages, as `python -m tests.cluster.shapes` prints them for a program.

A shape has what the wire has: the order and types of fields, and whether one may be left out. Names
of classes, and of fields that travel without names, are not part of it.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct, inspect

Shape = Any
"""A string, or a list that begins with one."""


def shapes() -> dict[str, Shape]:
    """Of requests and answers, by opcode, and of the lines between supervisors, by tag."""
    from maitred.node import member_lines
    from maitred.protocol.messages import ANSWERS, REQUESTS

    lines = [one for one in vars(member_lines).values() if _is_line(one)]
    return {
        **{f"request 0x{opcode:02x}": shape(kind) for opcode, kind in REQUESTS.items()},
        **{f"answer to 0x{opcode:02x}": shape(kind) for opcode, kind in ANSWERS.items()},
        **{f"line {one.__struct_config__.tag}": shape(one) for one in lines},
    }


def _is_line(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Struct) and one is not Struct


def shape(kind: type) -> Shape:
    return _shape(inspect.type_info(kind))


def _shape(of: inspect.Type) -> Shape:
    if isinstance(of, inspect.StructType):
        fields = [
            ["required" if one.required else "optional", _shape(one.type)] for one in of.fields
        ]
        if of.array_like:
            return ["array", *fields]
        names = [one.encode_name for one in of.fields]
        return ["map", dict(zip(names, fields, strict=True))]
    if isinstance(of, inspect.EnumType):
        return ["one of", *sorted(str(one.value) for one in of.cls)]
    if isinstance(of, inspect.UnionType):
        return ["either", *sorted(map(_shape, of.types), key=str)]
    if isinstance(of, inspect.TupleType):
        return ["tuple", *map(_shape, of.item_types)]
    if isinstance(of, inspect.DictType):
        return ["dict", _shape(of.key_type), _shape(of.value_type)]
    if isinstance(of, inspect.CollectionType):
        return ["list", _shape(of.item_type)]
    return type(of).__name__


def misread(old: Shape, new: Shape) -> str:
    """What a program that knows the old shape would misread in the new one, or the other way round;
    empty if nothing. Fields may be added at the end, and may be left out."""
    if not isinstance(old, list) or not isinstance(new, list) or old[0] != new[0]:
        return "" if old == new else f"{old} became {new}"
    if old[0] == "map":
        gone = old[1].keys() - new[1].keys()
        added = [new[1][name] for name in new[1].keys() - old[1].keys()]
        pairs = [(old[1][name], new[1][name]) for name in old[1].keys() - gone]
    elif old[0] == "array":
        gone, added = old[len(new) :], new[len(old) :]
        pairs = list(zip(old[1:], new[1:], strict=False))
    else:
        gone, added = [], []
        pairs = list(zip(old[1:], new[1:], strict=False)) if len(old) == len(new) else [(old, None)]
    if gone:
        return f"{gone} is gone"
    if any(need == "required" for need, _ in added):
        return f"{added} was added, and may not be left out"
    found = (misread(*pair) for pair in pairs)
    return next((one for one in found if one), "")


if __name__ == "__main__":
    print(json.dumps(shapes()))
