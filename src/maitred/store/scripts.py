"""Load the SQL of the engines from the folder `sql` beside this file.

SQL reads best as SQL, in files that editors and databases know. An engine has a folder with
numbered migrations (`0001_initial.sql`), applied in order and never changed once they are released,
and `statements.sql` with its statements, each under a line `-- name: ...`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERED = re.compile(r"(\d{4})_\w+\.sql")
_COMPATIBLE = re.compile(r"^-- compatible: (\d+)$", re.MULTILINE)
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Migration(NamedTuple):
    """The script that migrates a database to `version` from the version before it."""

    version: int
    script: str

    @property
    def compatible(self) -> int:
        """The version that a program has to know to use the migrated database: that of the line
        `-- compatible: N`, or this one."""
        found = _COMPATIBLE.search(self.script)
        return int(found[1]) if found else self.version


def script(engine: str, name: str) -> str:
    """Return the text of one SQL file of an engine."""
    return files("maitred.store").joinpath("sql", engine, f"{name}.sql").read_text("utf-8")


@cache
def migrations(engine: str) -> tuple[Migration, ...]:
    """Return all migrations of an engine, the oldest first."""
    found = files("maitred.store").joinpath("sql", engine).iterdir()
    numbered = [(_NUMBERED.fullmatch(file.name), file) for file in found]
    return tuple(
        sorted(Migration(int(name[1]), file.read_text("utf-8")) for name, file in numbered if name)
    )


@cache
def statements(engine: str) -> Mapping[str, str]:
    """Return the statements of an engine by name."""
    _, *parts = _NAME.split(script(engine, "statements"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
