"""The types of the settings, analysed once, and described in words.

msgspec decides whether a value fits; its messages name Python types. A person who edits a file is
told what is allowed instead ("a whole number from 1 to 1,024"), in words made from the same type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta, Struct, structs

from maitred.settings.basis import ADVANCED, FIXED


@dataclass(frozen=True, slots=True)
class SettingKind:
    """The type of a setting, without its `Annotated` and its `| None`."""

    type: Any
    """Type to convert to, as it is written in the annotation."""

    bare: Any
    """The type itself: `int`, a Struct, `dict[...]`, a Literal, or a union of several."""

    ranges: Meta | None = None
    optional: bool = False
    advanced: bool = False
    """Whether the setting is an advanced one, which few people need to change."""

    @property
    def struct(self) -> type[Struct] | None:
        """The group of settings, if this is one; None otherwise."""
        if isinstance(self.bare, type) and issubclass(self.bare, Struct):
            return self.bare
        return None

    @property
    def values(self) -> SettingKind | None:
        """The type of the values, if this is a mapping; None otherwise."""
        return kind_of(get_args(self.bare)[1]) if get_origin(self.bare) is dict else None

    @property
    def alternatives(self) -> list[SettingKind]:
        """The parts of a union; for any other type, the type itself."""
        if get_origin(self.bare) in {Union, UnionType}:
            return [kind_of(part) for part in get_args(self.bare)]
        return [self]

    @property
    def is_nested(self) -> bool:
        """Whether the value is written as JSON where only text can be written."""
        return self.struct is not None or get_origin(self.bare) in {dict, list}

    @property
    def is_location(self) -> bool:
        return self._has("location")

    @property
    def is_hidden(self) -> bool:
        return self._has("hidden")

    def _has(self, mark: str) -> bool:
        return bool(self.ranges and self.ranges.extra and self.ranges.extra.get(mark))

    def words(self) -> str:
        """Return what may be written here, for the middle of a sentence."""
        return ", or ".join(_words(part) for part in self.alternatives)

    def short(self) -> str:
        """Return the type for a table: `int`, `text`, `table`."""
        return " or ".join(_short(part) for part in self.alternatives)


def kind_of(annotation: Any) -> SettingKind:  # noqa: ANN401 - annotations have no common type
    """Return the kind of an annotation."""
    bare, ranges, optional, advanced = annotation, None, False, False
    while True:
        if get_origin(bare) is Annotated:
            bare, *notes = get_args(bare)
            advanced = advanced or ADVANCED in notes
            ranges = next((note for note in notes if isinstance(note, Meta)), ranges)
        elif get_origin(bare) in {Union, UnionType} and NoneType in get_args(bare):
            optional = True
            rest = [part for part in get_args(bare) if part is not NoneType]
            bare = rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007 - made at run time
        else:
            return SettingKind(annotation, bare, ranges, optional, advanced)


@dataclass(frozen=True, slots=True)
class Field:
    """One setting of a group."""

    name: str
    kind: SettingKind
    required: bool
    default: object


@cache
def fields_of(group: type[Struct]) -> dict[str, Field]:
    """Return the settings of a group by name, in the order in which they are written; without the
    values that are fixed."""
    hints = get_type_hints(group, include_extras=True)
    found = {}
    for one in structs.fields(group):
        if FIXED in getattr(hints[one.name], "__metadata__", ()):
            continue
        default = one.default
        if default is NODEFAULT and one.default_factory is not NODEFAULT:
            default = one.default_factory()
        found[one.name] = Field(one.name, kind_of(hints[one.name]), one.required, default)
    return found


def _words(kind: SettingKind) -> str:
    choices = _choices(kind)
    if choices:
        return f"one of {', '.join(choices)}"
    origin = get_origin(kind.bare)
    if origin is dict or kind.struct:
        return "a table"
    if origin is list:
        return f"a list, each entry {kind_of(get_args(kind.bare)[0]).words()}"
    if kind.bare is bool:
        return "true or false"
    if kind.bare is int:
        return f"a whole number{_range(kind.ranges)}"
    if kind.bare is float:
        return f"a number{_range(kind.ranges)}"
    if kind.ranges and kind.ranges.pattern and kind.ranges.extra:
        return str(kind.ranges.extra["words"])
    return "text that is not empty" if kind.ranges and kind.ranges.min_length else "text"


def _short(kind: SettingKind) -> str:
    choices = _choices(kind)
    if choices:
        return ", ".join(choices)
    if get_origin(kind.bare) is list:
        return f"list of {kind_of(get_args(kind.bare)[0]).short()}"
    if get_origin(kind.bare) is dict:
        values = kind.values
        return f"table of {values.short()}" if values and len(values.alternatives) == 1 else "table"
    if kind.struct:
        return "table"
    if kind.is_location:
        return "path"
    return {int: "int", float: "float", bool: "bool"}.get(kind.bare, "text")


def _choices(kind: SettingKind) -> list[str]:
    return [str(one) for one in get_args(kind.bare)] if get_origin(kind.bare) is Literal else []


def _range(ranges: Meta | None) -> str:
    if ranges is None:
        return ""
    low, high = ranges.ge, ranges.le
    if ranges.gt is not None:
        above = f" above {ranges.gt:,}"
        if ranges.lt is not None:
            return f"{above} and below {ranges.lt:,}"
        return above if high is None else f"{above}, at most {high:,}"
    if low is None:
        return "" if high is None else f", at most {high:,}"
    return f" of {low:,} or more" if high is None else f" from {low:,} to {high:,}"
