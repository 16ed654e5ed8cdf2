"""Options of a task or a query: on the decorator, and for one call.

    @app.handler("thumbnails", retries=3, timeout=30)
    await thumbnail.options(delay=5, priority=0).enqueue(...)
    await thumbnail.options(timeout=5, idempotent=True).query(...)

Options are checked where they are given; an error names the option.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final, TypedDict

from maitred.client.enqueue_batches import Conditions
from maitred.errors import InvalidArgument, UnknownChoice
from maitred.matching.records import PRIORITIES, Terms
from maitred.protocol.tasks import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRIES_MAX: Final = 2**31 - 1


class Options(TypedDict, total=False):
    """Options of a task or a query; times are in seconds."""

    delay: float
    """Seconds from now before which a task is not run."""
    priority: int
    """Priority from 0, which is served first, to 4; the default is 2."""
    expires: float
    """Seconds after which a task that has not begun is dropped; 0: it never expires."""
    retries: int
    """Further attempts after a failed one, 3 by default. After the last one the task is a dead
    letter."""
    backoff: float | tuple[float, float]
    """Wait before the first retry, doubled each time, with jitter; or a pair of that and the
    longest wait. The default is 1 and 300."""
    timeout: float
    """Longest time of one attempt at a task, 0: no limit; for a query, of all attempts, 0: the
    client's default."""
    retention: float
    """How long the result is kept; 60 by default."""
    require_worker: bool
    """Whether a task is refused if no worker serves its queue now or served it in the last day."""
    idempotent: bool
    """For queries: whether one may be run again on another worker if its worker is lost."""
    do_not_queue: bool
    """For queries: whether to refuse one if no worker is free now."""


NAMES: Final = tuple(Options.__annotations__)


def conditions(options: Mapping[str, object], base: Conditions | None = None) -> Conditions:
    """Check the options and return the conditions that they make, based on those of `base`."""
    base = base or Conditions()
    for name in options:
        if name not in NAMES:
            raise UnknownChoice.named("option of a task", name, NAMES)
    terms = base.terms
    first, longest = terms.backoff_first, terms.backoff_longest
    if "backoff" in options:
        first, longest = _backoff(options["backoff"], longest)
    return Conditions(
        _whole("priority", options.get("priority", base.priority), PRIORITIES - 1),
        _seconds("delay", options.get("delay", base.delay)),
        _seconds("expires", options.get("expires", base.expires)),
        Terms(
            _whole("retries", options.get("retries", terms.retries), RETRIES_MAX),
            first,
            longest,
            _seconds("timeout", options.get("timeout", terms.timeout)),
            _seconds("retention", options.get("retention", terms.retention)),
            terms.hidden,
        ),
    )


def is_idempotent(options: Mapping[str, object], base: bool) -> bool:
    """Return the option `idempotent`: whether queries may be run again on another worker."""
    return _truth("idempotent", options, base)


def is_worker_required(options: Mapping[str, object], base: bool) -> bool:
    """Return the option `require_worker`: whether a task is refused if no worker serves its
    queue."""
    return _truth("require_worker", options, base)


def is_now_or_never(options: Mapping[str, object], base: bool) -> bool:
    """Return the option `do_not_queue`: whether queries are refused rather than queued."""
    return _truth("do_not_queue", options, base)


def _truth(name: str, options: Mapping[str, object], base: bool) -> bool:
    value = options.get(name, base)
    if not isinstance(value, bool):
        raise InvalidArgument(f"The option {name!r} is {value!r}; it has to be True or False.")
    return value


def _backoff(value: object, longest: float) -> tuple[float, float]:
    if not isinstance(value, tuple):
        first = _seconds("backoff", value)
        return first, max(first, longest)
    if len(value) != 2:
        raise InvalidArgument(
            f"The option 'backoff' is {value!r}; a pair is the first wait and the longest."
        )
    first, longest = _seconds("backoff", value[0]), _seconds("backoff", value[1])
    if first > longest:
        raise InvalidArgument(
            f"The option 'backoff' is {value!r}, but the first wait is longer than the longest."
        )
    return first, longest


def _whole(name: str, value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgument(
            f"The option {name!r} is {value!r}; it has to be a whole number from 0 to {most}."
        )
    return value


def _seconds(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or not 0 <= value <= NEVER
    ):
        raise InvalidArgument(
            f"The option {name!r} is {value!r}; it has to be a number of seconds, 0 or more."
        )
    return float(value)
