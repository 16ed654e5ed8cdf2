"""A warning at the start about files with secrets that other users of the machine can use.

A key, a users file or a settings file with a password belongs to a person, so its mode is left as
it is, and the process starts: in a container, where secrets are mounted with mode 0644 and there is
one user only, nothing is wrong with it. As in PostgreSQL, a group may read a file of root.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from maitred.errors import MaitredError
from maitred.schema.toml_files import read_toml

if TYPE_CHECKING:
    from maitred.settings import Node

SECRETS: Final = ("store", "users")
"""Settings that hold secrets; a settings file without them may be read by all users."""

READ: Final = 0o044
WRITE: Final = 0o022
GROUP_READ: Final = 0o040


class Exposure(NamedTuple):
    """A file that other users of the machine can read or change."""

    what: str
    """Setting that names the file."""
    file: str
    mode: str
    """Permissions of the file in octal, as `chmod` takes them."""
    others: str
    """What other users can do with the file: read it, change it."""


class WarningLog(Protocol):
    """The part of a logger that is used here."""

    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


def warn_of_exposed_files(settings: Node, file: str | None, log: WarningLog) -> None:
    """Log which files with secrets other users can read or change."""
    for what, path, mode, others in exposures(settings, file):
        log.warning(
            "others can use a file with secrets",
            setting=what,
            others_can=others,
            file=path,
            mode=mode,
            remedy=f"chmod 600 {path}",
        )


def exposures(settings: Node, file: str | None = None) -> list[Exposure]:
    """Find exposed files among those that the settings name, and the settings file if it holds
    secrets."""
    named = {"users_file": settings.users_file}
    if settings.tls is not None:
        named["tls.key"] = settings.tls.key
    if file is not None and _has_secrets(file):
        named["the settings file"] = file
    found = [exposure(what, path) for what, path in named.items() if path is not None]
    return [one for one in found if one is not None]


def exposure(what: str, path: str) -> Exposure | None:
    """Return what other users can do with one file; None if they can do nothing, or if it does not
    exist."""
    try:
        known = Path(path).stat()
    except (OSError, ValueError):
        return None  # the code that reads the file reports it
    bits = READ | WRITE
    if known.st_uid == 0:
        bits &= ~GROUP_READ
    open_to = stat.S_IMODE(known.st_mode) & bits
    if not open_to:
        return None
    others = "read and change" if open_to & READ and open_to & WRITE else "read"
    if not open_to & READ:
        others = "change"
    return Exposure(what, path, f"{stat.S_IMODE(known.st_mode):04o}", others)


def _has_secrets(file: str) -> bool:
    try:
        return any(name in SECRETS for name in read_toml(file))
    except MaitredError:
        return True
