"""The bodies of requests that change something, and how they are read.

Errors name the field and say what it has to be; an unknown field is refused with the most similar
name, because a misspelt `dry_run` must not become a real run.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field, inspect

from maitred.errors import InvalidArgument, UnknownChoice
from maitred.matching.controls import ShortText  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.inspection import CHANGED_MAX, ListedState, TaskAction
from maitred.protocol.requests import Natural  # noqa: TC001 - likewise
from maitred.protocol.tasks import Duration, PartitionCount, Reason  # noqa: TC001 - likewise
from maitred.settings.live import SettingValue  # noqa: TC001 - likewise

SETTINGS_MAX: Final = 100
"""Most settings of one request; a queue has fewer."""

Moment = Annotated[float, Meta(ge=0)]
"""Unix time in seconds; 0: no limit."""


class ArgumentBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An argument and its value."""

    name: ShortText
    value: Any = None


class FilterBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks are meant; empty fields mean all."""

    worker: ShortText = ""
    error: ShortText = ""
    by: ShortText = ""
    added_after: Moment = 0.0
    added_before: Moment = 0.0
    argument: ArgumentBody | None = None


class TaskActionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to which tasks: those with these ids, or those in a state that pass a filter."""

    action: TaskAction
    ids: Annotated[list[ShortText], Meta(min_length=1, max_length=CHANGED_MAX)] | None = None
    """Partition and sequence number of each task, as in `0/4294967296`."""
    state: ListedState | None = None
    """None: all states to which the action applies."""
    filter: FilterBody | None = None
    dry_run: bool = False
    """Whether the tasks are only counted."""
    cursor: str | None = None
    """`cursor` of the last answer."""
    reason: Reason = ""


class PauseBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a queue is paused or resumed."""

    reason: Reason = ""
    expect_version: Natural | None = None
    """Version that the controls of the queue must have; null: any."""


class SettingsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a queue to set live, and to give back to the settings file."""

    set: Annotated[dict[ShortText, SettingValue], Meta(max_length=SETTINGS_MAX)] = field(
        default_factory=dict
    )
    unset: Annotated[list[ShortText], Meta(max_length=SETTINGS_MAX)] = field(default_factory=list)
    reason: Reason = ""
    expect_version: Natural | None = None


class PartitionsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of partitions that a queue shall have."""

    read: PartitionCount
    write: PartitionCount
    force: bool = False


PurgedState = Literal["waiting", "delayed", "dead"]


class PurgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks of a queue are dropped."""

    states: Annotated[list[PurgedState], Meta(min_length=1, max_length=3)] | None = None
    """None: those that wait and those that are delayed."""
    older_than: Duration = 0.0
    dry_run: bool = False
    cursor: str | None = None
    reason: Reason = ""


class NoBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body without fields."""


Body = TypeVar("Body", bound=Struct)

_read_json: Final = msgspec.json.Decoder().decode
_read_msgpack: Final = msgspec.msgpack.Decoder().decode

_PLACE: Final = re.compile(r"^(.*) - at `\$\.?(.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(\w+)`$")


def read_body(kind: type[Body], body: bytes, *, packed: bool) -> Body:
    """Return the body of a request; raise `InvalidArgument` with the field that is wrong."""
    if not body:
        return _converted({}, kind)
    try:
        raw = _read_msgpack(body) if packed else _read_json(body)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        name = "msgpack" if packed else "JSON"
        raise InvalidArgument(f"The body cannot be read as {name}: {problem}."[:300]) from None
    return _converted(raw, kind)


def _converted(raw: object, kind: type[Body]) -> Body:
    if not isinstance(raw, dict):
        raise InvalidArgument(
            "The body is no object.",
            remedy=f"Send an object with the fields {', '.join(kind.__struct_fields__)}.",
        )
    _check_names(raw, inspect.type_info(kind), "")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as problem:
        raise InvalidArgument(_sentence(str(problem))) from None


def _check_names(raw: object, kind: inspect.Type, path: str) -> None:
    """Raise `UnknownChoice` for a field that does not exist, and for a word that is not among those
    that a field may have. Numbers that are whole are made so."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            if isinstance(one, inspect.StructType | inspect.LiteralType | inspect.ListType):
                _check_names(raw, one, path)
    elif isinstance(kind, inspect.LiteralType):
        words = [one for one in kind.values if isinstance(one, str)]
        if isinstance(raw, str) and raw not in words:
            # An element of `states` is a state.
            what = path.rpartition(".")[2].removesuffix("s")
            raise UnknownChoice.named(what, raw[:60], words)
    elif isinstance(kind, inspect.ListType) and isinstance(raw, list):
        if isinstance(kind.item_type, inspect.LiteralType):
            for one in raw:
                _check_names(one, kind.item_type, path)
    elif isinstance(kind, inspect.StructType) and isinstance(raw, dict):
        _check_fields(raw, kind, path)


def _check_fields(raw: dict[Any, Any], kind: inspect.StructType, path: str) -> None:
    known = {one.encode_name: one.type for one in kind.fields}
    for name, value in list(raw.items()):
        if not isinstance(name, str) or name not in known:
            if not known:
                raise InvalidArgument("This request takes no fields in its body.")
            what = f"field of {path!r}" if path else "field of the body"
            raise UnknownChoice.named(what, str(name)[:60], known)
        _check_names(value, known[name], f"{path}.{name}" if path else name)
        raw[name] = _whole(value, known[name])


def _whole(value: object, kind: inspect.Type) -> object:
    """Return the value; a number such as 2.0 as a whole one, where one is expected: in JSON both
    are the same number."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    is_whole = any(isinstance(one, inspect.IntType) for one in kinds) and not any(
        isinstance(one, inspect.FloatType) for one in kinds
    )
    return int(value) if is_whole and isinstance(value, float) and value.is_integer() else value


def _sentence(text: str) -> str:
    found = _PLACE.match(text)
    reason, path = (found[1], found[2]) if found else (text, "")
    missing = _MISSING.match(reason)
    if missing:
        inside = f" in {path!r}" if path else ""
        return f"The body lacks the field {missing[1]!r}{inside}."
    where = f"The field {path!r} of the body" if path else "The body"
    return f"{where} does not fit: {reason}."
