"""The fuzzer's target: the first byte chooses what is examined, the second how it is cut."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


def targets() -> tuple[Callable[[int, bytes], None], ...]:
    """Return what can be examined, in the order in which the first byte of an input counts."""
    from fuzz.bodies import examine_body
    from fuzz.server import examine_raw, examine_requests
    from fuzz.streams import examine_stream
    from fuzz.tasks import examine_tasks

    return examine_body, examine_stream, examine_raw, examine_requests, examine_tasks


_known: Final[list[tuple[Callable[[int, bytes], None], ...]]] = []


def examine(data: bytes) -> None:
    """Whatever the bytes are, nothing but `Violated` may come out of this, and that never."""
    if len(data) < 2:
        return
    if not _known:
        _known.append(targets())
    known = _known[0]
    known[data[0] % len(known)](data[1], data[2:])


def main() -> None:
    """Run under atheris, which has to be installed; see README.md."""
    atheris = import_module("atheris")

    with atheris.instrument_imports(include=["maitred", "fuzz"]):
        _known.append(targets())
    atheris.Setup(sys.argv, examine)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
