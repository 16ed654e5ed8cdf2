"""Fits values to settings; an error tells which value, its source, and what would be accepted.

Values come from TOML, from JSON, from the environment as text, or from Python. They are fitted one
setting at a time instead of all at once: so an error can name the source of just that value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

import msgspec

from maitred.errors import InvalidSetting, UnknownSetting
from maitred.schema.kinds import SettingKind, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WHOLE = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(_\d+)*)(\.\d+(_\d+)*)?([eE][+-]?\d+)?", re.ASCII)

QUOTED_LETTERS = 60
"""Most characters of a wrong value that an error shows; the rest of the line fits into a
terminal."""


def fit(kind: SettingKind, value: object, name: str, source: str, *, text: bool = False) -> object:
    """Return the value in the form that msgspec accepts; raise `InvalidSetting` or `UnknownSetting`
    in words.

    With `text`, values may be given as text: "4747" for a number, JSON for a table. A group stays a
    mapping of the settings that were given, because merging sources needs to know which were.
    """
    if kind.optional and value is None:
        return None
    if text and isinstance(value, str):
        value = _parsed(kind, value)
    if kind.struct is not None:
        return _fit_group(kind.struct, value, name, source, text=text)
    if kind.values is not None:
        return _fit_entries(kind.values, value, name, source, text=text)
    return _fit_one(kind, value, name, source)


def check_complete(kind: SettingKind, value: object, name: str, source: str) -> None:
    """Raise `InvalidSetting` for a group that lacks a setting without a default."""
    if kind.struct is not None and isinstance(value, Mapping):
        for field in fields_of(kind.struct).values():
            if field.name in value:
                check_complete(field.kind, value[field.name], f"{name}.{field.name}", source)
            elif field.required:
                raise InvalidSetting(
                    f"{name}.{field.name} is missing (from {source}).",
                    remedy=f"Set it, or remove everything else of {name}.",
                )
    elif kind.values is not None and isinstance(value, Mapping):
        for key, one in value.items():
            check_complete(kind.values, one, f"{name}.{key}", source)


def names(group: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Yield the names of all settings and groups, here and below."""
    for field in fields_of(group).values():
        yield f"{prefix}{field.name}"
        if field.kind.struct is not None:
            yield from names(field.kind.struct, f"{prefix}{field.name}.")


def unknown(key: str, source: str, known: Iterable[str], prefix: str = "") -> UnknownSetting:
    """Return the error for an unknown setting. The prefix, which all names share, is not
    compared."""
    near = get_close_matches(key, sorted(known), n=1)
    return UnknownSetting(
        f"There is no setting called {_shortened(prefix + key)} (from {source}).",
        remedy=f"Did you mean {prefix + near[0]!r}?"
        if near
        else "`maitred config list` names them all.",
    )


def _fit_group(
    group: type[msgspec.Struct], value: object, name: str, source: str, *, text: bool
) -> dict[str, object]:
    fields = fields_of(group)
    prefix = f"{name}." if name else ""
    fitted = {}
    for key, given in _mapping(value, name, source).items():
        if key not in fields:
            raise unknown(key, source, names(group), prefix)
        fitted[key] = fit(fields[key].kind, given, f"{prefix}{key}", source, text=text)
    return fitted


def _fit_entries(
    values: SettingKind, value: object, name: str, source: str, *, text: bool
) -> dict[str, object]:
    fitted = {}
    for key, given in _mapping(value, name, source).items():
        if not key.isprintable() or not key.strip():
            raise InvalidSetting(
                f"{name} has the name {_shortened(key)} (from {source}).",
                remedy="A name has at least one letter, and no control characters.",
            )
        fitted[key] = fit(values, given, f"{name}.{key}", source, text=text)
    return fitted


def _mapping(value: object, name: str, source: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        # The value is not shown: a secret may have ended up here.
        raise InvalidSetting(
            f"{name} (from {source}) is not a table.",
            remedy="In a file write it as [table]; in the environment, as JSON.",
        )
    return value


def _fit_one(kind: SettingKind, value: object, name: str, source: str) -> object:
    try:
        fitted = msgspec.convert(value, kind.type)
        if isinstance(fitted, str):
            fitted.encode()  # text that is not Unicode is neither a path nor an address
            if "\0" in fitted:
                raise ValueError  # noqa: TRY301 - the same refusal as for all the others
    except (ValueError, OverflowError, RecursionError):
        shown = "cannot be used" if kind.is_hidden else f"is {_shortened(value)}"
        raise InvalidSetting(
            f"{name} {shown} (from {source}); it has to be {kind.words()}."
        ) from None
    return fitted


def _parsed(kind: SettingKind, text: str) -> object:
    """Return the value that the text stands for; the text itself if it does not look like the
    setting."""
    for part in kind.alternatives:
        try:
            if part.bare is int and _WHOLE.fullmatch(text):
                return int(text)
            if part.bare is float and _NUMBER.fullmatch(text):
                return float(text)
            if part.bare is bool and text.lower() in {"true", "false"}:
                return text.lower() == "true"
            if part.is_nested:
                return json.loads(text)
        except (ValueError, RecursionError):  # also for numbers too long and brackets too deep
            return text
    return text


def _shortened(value: object) -> str:
    try:
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
    except RecursionError:
        return "nested too deep"
    return shown if len(shown) <= QUOTED_LETTERS else shown[:QUOTED_LETTERS] + "..."
