"""The settings of a queue that operators can set while it runs, named as in the settings file.

A name is here only if the code that reads the setting sees the new value at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import ValidationError, convert, structs

from maitred.errors import InvalidSetting, UnknownSetting
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
)
"""Settings of a queue that can be set live."""

SettingValue = bool | int | float | None
"""The value of a setting that can be set live; None: no limit."""


def check_setting(name: str, value: SettingValue) -> SettingValue:
    """Return the value as the setting has it; raise `UnknownSetting` unless the setting can be set
    live, and `InvalidSetting` unless it allows the value."""
    check_settable(name)
    kind: Any = Queue
    for part in name.split("."):
        kind = next(field.type for field in structs.fields(kind) if field.name == part)
    try:
        found: SettingValue = convert(value, kind)
    except ValidationError as problem:
        shown = "none" if value is None else repr(value)
        raise InvalidSetting(f"{name} cannot be {shown}: {problem}.") from None
    return found


def check_settable(name: str) -> None:
    """Raise `UnknownSetting` unless the setting can be set live."""
    if name not in SETTABLE:
        raise UnknownSetting.named("live setting of a queue", name, SETTABLE)


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
