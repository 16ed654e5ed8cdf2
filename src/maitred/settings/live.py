"""The settings of a queue that operators can set while it runs, named as in the settings file.

A name is here only if the code that reads the setting sees the new value at once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from msgspec import ValidationError, convert, structs

from maitred.errors import InvalidArgument, InvalidSetting, UnknownSetting
from maitred.settings.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTABLE: Final = (
    "rate_per_second",
    "scaling.adaptive",
    "scaling.partitions_max",
    "history.tasks",
    "history.seconds",
    "history.stored",
    "queries.policy",
    "queries.waiting",
    "queries.waiting_per_user",
    "queries.no_worker_seconds",
    "queries.run_seconds",
)
"""Settings of a queue that can be set live. `queries.rate_per_second` and `queries.concurrent` are
not, because gateways count them as well, by their own settings."""

SettingValue = bool | int | float | str | None
"""The value of a setting that can be set live; None: no limit."""


def check_setting(name: str, value: SettingValue) -> SettingValue:
    """Return the value as the setting has it; raise `UnknownSetting` unless the setting can be set
    live, and `InvalidSetting` unless it allows the value."""
    check_settable(name)
    try:
        found: SettingValue = convert(value, _type_of(name))
    except ValidationError as problem:
        shown = "none" if value is None else repr(value)
        words = choices(name)
        raise InvalidSetting(
            f"{name} cannot be {shown[:60]}: {problem}.",
            remedy=f"It can be {', '.join(words)}." if words else None,
        ) from None
    return found


def choices(name: str) -> tuple[str, ...]:
    """Return the words that a setting can be set to; none for numbers and switches."""
    kind = _type_of(name)
    return get_args(kind) if get_origin(kind) is Literal else ()


@cache
def _type_of(name: str) -> Any:  # noqa: ANN401 - a type
    # To evaluate the annotations takes a millisecond, and each DESCRIBE asks for all settings.
    kind: Any = Queue
    for part in name.split("."):
        kind = next(field.type for field in structs.fields(kind) if field.name == part)
    return kind


def check_settable(name: str) -> None:
    """Raise `UnknownSetting` unless the setting can be set live."""
    if name not in SETTABLE:
        raise UnknownSetting.named("live setting of a queue", name, SETTABLE)


def check_set_or_unset(values: Mapping[str, SettingValue], unset: Sequence[str]) -> None:
    """Raise `InvalidArgument` for a setting that one request both sets and gives back."""
    if both := values.keys() & set(unset):
        raise InvalidArgument(f"{min(both)} is both set and unset.")


def with_live(settings: Queue, values: Mapping[str, SettingValue]) -> Queue:
    """Return the settings with those values that can be set live; a later release may know more."""
    for name in SETTABLE:
        if name in values:
            settings = _replaced(settings, name.split("."), values[name])
    return settings


def _replaced(settings: Queue, path: Sequence[str], value: SettingValue) -> Queue:
    if len(path) == 1:
        return structs.replace(settings, **{path[0]: value})
    inner = structs.replace(getattr(settings, path[0]), **{path[1]: value})
    return structs.replace(settings, **{path[0]: inner})


def setting(settings: Queue, name: str) -> SettingValue:
    """Return the value of a setting that can be set live."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value  # type: ignore[no-any-return]
