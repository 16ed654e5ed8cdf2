"""The controls of a queue: what operators change while it runs.

One record has all of them. The root stores it with its row, and tells it to the other partitions; a
partition that is loaded asks its root before it hands anything out. Partitions adopt records only
forward, by version, so an old message undoes nothing.

A version is above the root's range id. Every owner of the root has a higher range id than the one
before it, and a database that failed over raises range ids by a thousand. A record that the
database has lost, but another partition still has, therefore never shares its version with a later
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import DecodeError, Meta, Struct, msgpack, structs

from maitred.errors import ControlsConflict
from maitred.settings.live import SettingValue, with_live

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitred.settings import Queue

CONTROLS_ROW: Final = 1
"""Where the row of the controls stands among the results of the root. No task has this number:
those start at `SEQUENCES_PER_RANGE`."""

NAME_CHARACTERS: Final = 200
"""Longest name of a user or of a setting."""

ShortText = Annotated[str, Meta(max_length=NAME_CHARACTERS)]


class Pause(Struct, frozen=True, kw_only=True):
    """Names the operator who paused a queue, the time and the reason."""

    by: str = ""
    """The user; empty if the node has no users."""
    at: float = 0.0
    """When, in seconds since 1970."""
    reason: str = ""


class LiveSetting(Struct, frozen=True, kw_only=True):
    """The value of a setting that an operator has set, by whom, when and why."""

    value: SettingValue
    by: str = ""
    at: float = 0.0
    reason: str = ""


class QueueControls(Struct, frozen=True, kw_only=True):
    """The controls of a queue; a higher version always replaces a lower one."""

    version: int = 0
    """0: no operator has changed anything."""
    pause: Pause | None = None
    """Set while the queue is paused: it accepts tasks, and hands none out."""
    settings: dict[str, LiveSetting] = {}
    """The settings that were set live to a number or switch, by their names in the settings file.
    """
    words: dict[str, LiveSetting] = {}
    """Those that were set live to a word. They stand apart because the release that brought the
    controls expects numbers in `settings`, could not read the record, and would pause the queue."""

    @property
    def live(self) -> dict[str, LiveSetting]:
        """All settings that were set live."""
        return {**self.settings, **self.words}

    def check(self, version: int | None) -> None:
        """Raise `ControlsConflict` unless this is the version that the operator expects; None
        expects any."""
        if version is not None and version != self.version:
            raise ControlsConflict(
                f"The controls of the queue have version {self.version}, not {version}: another "
                "operator was first.",
                remedy="Look at them with `maitred admin queue describe`, and decide again.",
            )

    def paused(self, pause: Pause, range_id: int) -> QueueControls:
        """Return the record of the paused queue; of a queue that is paused, this one."""
        if self.pause is not None:
            return self
        return structs.replace(self, pause=pause, version=self._next(range_id))

    def resumed(self, range_id: int) -> QueueControls:
        """Return the record of the resumed queue; of a queue that is not paused, this one."""
        if self.pause is None:
            return self
        return structs.replace(self, pause=None, version=self._next(range_id))

    def set(
        self, values: Mapping[str, LiveSetting], unset: Sequence[str], range_id: int
    ) -> QueueControls:
        """Return the record with these settings set, and those given back to the settings file."""
        live = {**self.live, **values}
        for name in unset:
            live.pop(name, None)
        if live == self.live:
            return self
        words = {name: one for name, one in live.items() if isinstance(one.value, str)}
        settings = {name: one for name, one in live.items() if name not in words}
        version = self._next(range_id)
        return structs.replace(self, settings=settings, words=words, version=version)

    def _next(self, range_id: int) -> int:
        return max(self.version, range_id) + 1


NO_CONTROLS: Final = QueueControls()

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(QueueControls).decode


def encode_controls(controls: QueueControls) -> bytes:
    """Return the row of the record."""
    return _encode(controls)


def decode_controls(row: bytes | None, range_id: int) -> QueueControls:
    """Return the record of a row; None: no operator has changed anything.

    A row that cannot be read gives a paused queue: the queue may have been paused, and an operator
    who resumes it writes the row anew.
    """
    if row is None:
        return NO_CONTROLS
    try:
        return _decode(row)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        reason = "The stored controls of the queue cannot be read; resume it to go on."
        return QueueControls(version=range_id, pause=Pause(reason=reason))


def effective(settings: Queue, controls: QueueControls) -> Queue:
    """Return the settings of the queue with those that were set live."""
    return with_live(settings, {name: live.value for name, live in controls.live.items()})
