"""What a worker is to serve, from text: `module:attribute`, as in `shop:app`.

Most of this is about being helpful: it is the first thing that people type, and it goes wrong.
"""

from __future__ import annotations

import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.app.app import App
from maitred.app.handler import Handler
from maitred.errors import CannotLoad, MaitredError, UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_FORM: Final = "Write module:attribute, as in shop:app for the app in shop.py."


def load(target: str, directory: Path | None = None) -> App:
    """The app, imported as if by a program in the directory (the current one)."""
    name, colon, attribute = target.partition(":")
    if not colon or not name or not attribute:
        raise CannotLoad(f"{target!r} does not say which app to serve.", remedy=_FORM)
    if not all(part.isidentifier() for part in f"{name}.{attribute}".split(".")):
        raise CannotLoad(f"{target!r} is not module:attribute.", remedy=_FORM)
    place = str(directory or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    module = _imported(name, place)
    found = _attribute(module, name, attribute)
    if isinstance(found, Handler):
        raise CannotLoad(
            f"{target} is a handler, and a worker serves an app.",
            remedy="Name its app, and --queue for some of its queues.",
        )
    if not isinstance(found, App):
        raise CannotLoad(
            f"{target} is a {type(found).__name__}, no App.", remedy=_apps_of(module, name) or _FORM
        )
    if not found.handlers:
        raise CannotLoad(
            f"{target} has no handlers.",
            remedy="Decorate functions with @app.handler; a module that does it has to be imported "
            f"by {name}.",
        )
    return found


def handlers_of(app: App, queues: Sequence[str]) -> list[Handler[Any, Any, Any]]:
    """Return the handlers of these queues; of all queues of the app, if none are named."""
    for queue in queues:
        if queue not in app.handlers:
            raise UnknownChoice.named("queue with a handler", queue, app.handlers)
    return [one for queue, one in app.handlers.items() if not queues or queue in queues]


def _imported(name: str, place: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise CannotLoad(
                f"There is no module {missing!r} in {place}, nor is one installed.",
                remedy="Start the worker where the module lies, or set PYTHONPATH.",
            ) from None
        raise _broken(name, problem) from problem
    except MaitredError as problem:
        raise CannotLoad(
            f"Importing {name} failed: {problem.sentence} [{problem.code}]", remedy=problem.remedy
        ) from problem
    except (Exception, SystemExit) as problem:
        raise _broken(name, problem) from problem


def _broken(name: str, problem: BaseException) -> CannotLoad:
    frames = traceback.extract_tb(problem.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return CannotLoad(f"Importing {name} failed: {type(problem).__name__}: {problem}{where}.")


def _attribute(module: ModuleType, name: str, attribute: str) -> object:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else None
            raise CannotLoad(f"{name} has no {attribute!r}.", remedy=_apps_of(module, name) or hint)
        found = getattr(found, part)
    return found


def _apps_of(module: ModuleType, name: str) -> str | None:
    apps = [f"{name}:{key}" for key, value in vars(module).items() if isinstance(value, App)]
    return f"It has {', '.join(sorted(apps))}." if apps else None
