"""Load a function of your own that sees every query first: `gateway.hook = "module:name"`.

The function gets the query (`maitred.dispatch.ask.Ask`), may change it, and returns it; an
exception refuses the query. It may be async.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maitred.errors import CannotLoad

if TYPE_CHECKING:
    from collections.abc import Callable

REMEDY = "Name it as MODULE:NAME; the module has to be where Python looks (PYTHONPATH)."


def load_hook(target: str | None) -> Callable[[Any], Any] | None:
    """Return the function, None if none is set; raise `CannotLoad` with the reason."""
    if target is None:
        return None
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise CannotLoad(f"gateway.hook is {target!r}, which is not MODULE:NAME.", remedy=REMEDY)
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as problem:
        raise CannotLoad(
            f"gateway.hook {target!r} cannot be imported: {type(problem).__name__}: {problem}.",
            remedy=REMEDY,
        ) from problem
    if not callable(found):
        raise CannotLoad(f"gateway.hook {target!r} is not a function.", remedy=REMEDY)
    function: Callable[[Any], Any] = found
    return function
