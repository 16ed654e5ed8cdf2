"""Every setting as a row: name, type, default, reason. `maitred config list` prints them.

The reasons are the docstrings below the attributes in maitred.settings: Python drops those, so they
are read from its source. Where there is no source (a frozen program) the reasons are empty.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from maitred import settings
from maitred.schema.kinds import SettingKind, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct

ANY_NAME = "<name>"
"""Stands in a setting's name where the user chooses one, as in `users.<name>.secret`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, as the documentation lists it."""

    name: str
    type: str
    default: object
    reason: str
    required: bool
    """Whether it must be given as soon as any other setting of its group is."""

    advanced: bool
    """Whether it is documented among the advanced settings, which few people need to change."""

    kind: SettingKind


@cache
def rows(group: type[Struct] = settings.Node) -> tuple[Row, ...]:
    """Return all settings below a group, in the order of the schema."""
    return tuple(_rows(group, "", advanced=False))


def _rows(group: type[Struct], prefix: str, *, advanced: bool) -> Iterator[Row]:
    for field in fields_of(group).values():
        name = f"{prefix}{field.name}"
        inner = field.kind.values
        rare = advanced or field.kind.advanced
        if field.kind.struct is not None:
            yield from _rows(field.kind.struct, f"{name}.", advanced=rare)
        elif inner is not None and inner.struct is not None:
            yield from _rows(inner.struct, f"{name}.{ANY_NAME}.", advanced=rare)
        else:
            reason = _reasons(group.__module__).get((group.__name__, field.name), "")
            default = None if field.required else field.default
            yield Row(name, field.kind.short(), default, reason, field.required, rare, field.kind)


@cache
def _reasons(module: str) -> dict[tuple[str, str], str]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, SyntaxError):
        return {}
    found = {}
    for group in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for one, after in zip(group.body, group.body[1:], strict=False):
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[group.name, one.target.id] = " ".join(after.value.value.split())
    return found
