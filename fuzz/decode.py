"""The fuzzer's target: the first byte chooses what is examined, the second how it is cut."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


NUMBERS: Final = 16
"""The low four bits of an input's first byte are the number of its target. The modulus is fixed, so
that a new target changes what no input of the corpus means."""


def targets() -> dict[int, Callable[[int, bytes], None]]:
    """Return what can be examined by its number; a number that is not here examines nothing."""
    from fuzz.bodies import examine_body
    from fuzz.client import examine_client
    from fuzz.http import examine_http
    from fuzz.links import examine_gateway_link, examine_worker_link
    from fuzz.server import examine_raw, examine_requests
    from fuzz.streams import examine_stream
    from fuzz.tasks import examine_tasks

    return {
        0: examine_body,
        1: examine_stream,
        2: examine_raw,
        3: examine_requests,
        4: examine_tasks,
        5: examine_http,
        6: examine_worker_link,
        7: examine_gateway_link,
        8: examine_client,
    }


_known: Final[dict[int, Callable[[int, bytes], None]]] = {}


def examine(data: bytes) -> None:
    """Whatever the bytes are, nothing but `Violated` may come out of this, and that never."""
    if len(data) < 2:
        return
    if not _known:
        _known.update(targets())
    target = _known.get(data[0] % NUMBERS)
    if target is not None:
        target(data[1], data[2:])


def main() -> None:
    """Run under atheris, which has to be installed; see README.md."""
    atheris = import_module("atheris")

    with atheris.instrument_imports(include=["maitred", "fuzz"]):
        _known.update(targets())
    atheris.Setup(sys.argv, examine)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
