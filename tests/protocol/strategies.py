"""Any value that a message may have, made from its type: no message can be added without a test."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct, inspect

LIST_MAX = 3
INT64 = (-(2**63), 2**63 - 1)

texts = st.text(st.characters(codec="utf-8"), max_size=30)


@cache  # to make a strategy takes longer than to draw an example of it
def values(kind: type[Struct]) -> st.SearchStrategy[Any]:
    """Everything that the decoder of that message takes."""
    return _values(inspect.type_info(kind))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StructType():
            fields = {field.name: _values(field.type) for field in kind.fields}
            return st.builds(kind.cls, **fields)
        case inspect.IntType():
            low = INT64[0] if kind.ge is None else kind.ge
            high = INT64[1] if kind.le is None else kind.le
            return st.integers(low, high if kind.lt is None else kind.lt - 1)
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case inspect.StrType():
            return texts
        case inspect.BytesType():
            longest = 60 if kind.max_length is None else kind.max_length
            return st.binary(min_size=kind.min_length or 0, max_size=longest)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.ListType():
            items = _values(kind.item_type)
            return st.lists(items, min_size=kind.min_length or 0, max_size=LIST_MAX)
        case inspect.VarTupleType():
            return st.lists(_values(kind.item_type), max_size=LIST_MAX).map(tuple)
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.TupleType():
            return st.tuples(*map(_values, kind.item_types))
        case inspect.DictType():
            keys, entries = _values(kind.key_type), _values(kind.value_type)
            return st.dictionaries(keys, entries, max_size=LIST_MAX)
        case inspect.UnionType():
            return st.one_of(*map(_values, kind.types))
        case _:
            raise NotImplementedError(f"{kind} is in a message for the first time")
