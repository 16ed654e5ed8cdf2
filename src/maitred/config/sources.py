"""Merges the sources of settings: the command line overrides the environment, which overrides the
file.

Each source is fitted to the schema by itself and then flattened, one entry per setting; so merging
is the update of a dictionary, and the source of every value stays known.

`users` is one setting: a source that names users replaces those of the weaker sources, instead of
leaving some of them in by surprise. So are `queues` and `namespaces`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from maitred.config.checks import check
from maitred.errors import UnknownSetting
from maitred.schema import (
    SettingKind,
    check_complete,
    fields_of,
    fit,
    kind_of,
    names,
    read_toml,
    unknown,
)
from maitred.settings import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maitred.settings import Telemetry

PREFIX = "MAITRED_"
RESERVED = frozenset({"MAITRED_URL", "MAITRED_TOKEN"})
"""Variables with the prefix that are not for the node: the client's address and its token."""

COMMAND_LINE = "the command line"

_NODE = kind_of(Node)
_SERVICE_LINK = re.compile(r"MAITRED_(SERVICE_(HOST|PORT).*|PORT_\d+_.*)")


class _Given(NamedTuple):
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings of a node, and where each came from."""

    node: Node
    sources: dict[str, str]
    """Source of each setting that was set, by name (`limits.frame_bytes`; `users` and `queues` as
    one)."""


def load(file: str | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Node:
    """Return the settings of a node; raise `InvalidSetting` or `UnknownSetting` with the reason.

    Flags are named like the settings, `limits.frame_bytes` or nested; a flag that is None was not
    given.
    """
    return load_with_sources(file, environment, flags).node


def load_with_sources(
    file: str | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> Loaded:
    """Return the settings of a node with their sources, for commands that explain them."""
    given: dict[str, _Given] = {}
    if file is not None:
        given |= _from_file(file)
    given |= _from_environment(environment)
    given |= _from_flags(flags)
    sources = {name: one.source for name, one in given.items()}
    tree = _nested(given)
    for field in fields_of(Node).values():
        if field.name in tree:
            check_complete(field.kind, tree[field.name], field.name, source_of(field.name, sources))
    node = msgspec.convert(tree, Node)
    check(node, sources)
    return Loaded(node, sources)


def telemetry_settings(
    environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> Telemetry:
    """Return the settings of telemetry of a process without a settings file, a worker or a program:
    from the variables that a node reads as well (`MAITRED_TELEMETRY__TRACES`), and from flags such
    as `telemetry.traces`. Raise `InvalidSetting` or `UnknownSetting`."""
    variables = {
        name: value
        for name, value in environment.items()
        if name.partition("__")[0] == f"{PREFIX}TELEMETRY"
    }
    return load(None, variables, flags or {}).telemetry


def _from_file(file: str) -> dict[str, _Given]:
    source = f"the file {file}"
    fitted = fit(_NODE, read_toml(file), "", source)
    directory = Path(file).parent
    given = {}
    for name, value, kind in _settings(_NODE, fitted, ""):
        if kind.is_location and isinstance(value, str):
            value = str(directory / value)  # noqa: PLW2901 - an absolute one stays what it is
        given[name] = _Given(value, source)
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    known = {name.upper().replace(".", "__"): name for name in names(Node)}
    given: dict[str, _Given] = {}
    # Sorted, a group (MAITRED_LIMITS) comes before its members (MAITRED_LIMITS__IN_FLIGHT).
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        if _SERVICE_LINK.fullmatch(variable) or environment[variable].startswith("tcp://"):
            raise UnknownSetting(
                f"The variable {variable} looks like one that Kubernetes sets for a service called "
                "maitred; it is not a setting of a node.",
                remedy="Set enableServiceLinks: false for the pod, or rename the service.",
            )
        key = variable.removeprefix(PREFIX)
        for names_of in ("USERS", "QUEUES", "NAMESPACES"):
            if key.startswith(f"{names_of}__"):
                # Variables are upper case, and the names of users, queues and namespaces are not.
                raise UnknownSetting(
                    f"There is no setting called {variable!r} (from the environment).",
                    remedy=f"Put all {names_of.lower()} into {PREFIX}{names_of}, as JSON.",
                )
        if key not in known:
            raise unknown(key, "the environment", known, PREFIX)
        given |= _spread(known[key], environment[variable], f"the variable {variable}")
    return given


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    known = set(names(Node))
    given: dict[str, _Given] = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in known:
            raise unknown(name, COMMAND_LINE, known)
        given |= _spread(name, value, COMMAND_LINE)
    return given


def _spread(name: str, value: object, source: str) -> dict[str, _Given]:
    """Return the settings in a value that was given for one name: a setting, or a whole group."""
    kind = _NODE
    for part in name.split("."):
        assert kind.struct is not None  # noqa: S101 - the name is known, so these are groups
        kind = fields_of(kind.struct)[part].kind
    fitted = fit(kind, value, name, source, text=True)
    return {found: _Given(one, source) for found, one, _ in _settings(kind, fitted, name)}


def _settings(
    kind: SettingKind, fitted: object, name: str
) -> Iterator[tuple[str, object, SettingKind]]:
    """Yield every setting in a fitted value with its full name; an empty group stands for
    itself."""
    if kind.struct is None or not isinstance(fitted, dict) or (name and not fitted):
        yield name, fitted, kind
        return
    for key, value in fitted.items():
        inner = fields_of(kind.struct)[key].kind
        yield from _settings(inner, value, f"{name}.{key}" if name else key)


def _nested(given: Mapping[str, _Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, one in given.items():
        *groups, last = name.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        if one.value == {}:
            place.setdefault(last, {})
        else:
            place[last] = one.value
    return tree


def source_of(name: str, sources: Mapping[str, str]) -> str:
    """Return where a setting came from; a group may have come from several sources."""
    return " and ".join(
        dict.fromkeys(
            source
            for setting, source in sources.items()
            if setting == name or setting.startswith(f"{name}.")
        )
    )
