"""Documents of a SQLite store: small files beside the databases, one per document.

A file begins with a line that holds the document's version; the body follows. A new version is
written to another file, synced, and renamed, so that a reader sees a whole version without a lock.
Writers hold the lock of the directory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maitred.errors import StoreUnavailable
from maitred.store.interface import Document
from maitred.store.private_files import write_private
from maitred.store.sqlite_errors import translated

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX: Final = ".document"

_VERSION: Final = re.compile(rb"([1-9][0-9]{0,17})\n")
_VERSION_BYTES: Final = 19


def read_document(directory: Path, name: str, known: int) -> Document | None:
    """Return the document; None if it does not exist or `known` is its version."""
    path = directory / f"{name}{SUFFIX}"
    with translated(path):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        with file:
            found = _VERSION.match(file.read(_VERSION_BYTES))
            version = int(found[1]) if found is not None else 0
            if found is not None and version != known:
                file.seek(found.end())
                return Document(version, file.read())
    if not version:
        raise StoreUnavailable(
            f"{path.name} does not begin with a version: it is damaged.",
            remedy="Put it back from a backup, or move it away if it is not needed.",
        )
    return None


def replace_document(directory: Path, name: str, version: int, body: bytes) -> bool:
    """Write the next version if `version` is the current one; the caller holds the lock."""
    present = read_document(directory, name, -1)
    if version != (present.version if present is not None else 0):
        return False
    path = directory / f"{name}{SUFFIX}"
    with translated(path):
        write_private(path, b"%d\n" % (version + 1) + body)
    return True
