"""What `adaptive` and `idle` promise when workers fail or lie, and whether a run kept it.

The numbers are what a user would expect, with some room for chance above what seeds 1 to 10 showed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from studies.contest.faults import FaultMeasures


@dataclass(frozen=True, slots=True)
class Promise:
    """What has to hold, and why one may expect it."""

    why: str
    during: float | None = None
    """At least this share of what is asked, or of what the honest workers can do."""
    timeouts: int = 0
    """At most so many have no answer at all in their time, while it lasts."""
    share_last: float | None = None
    """At most this share of the queries still goes to the worker after a while."""
    recovered_seconds: float | None = 0.5
    """After the end, until the workers in question do what they did before."""
    after_failures: int = 0
    """At most so many fail in the last second, long after the end."""

    def broken(self, seen: FaultMeasures) -> list[str]:
        """What was not kept, in words; nothing if all was."""
        found = []
        if self.during is not None and seen.during_share < self.during:
            found.append(f"{seen.during_share:.3f} of what could be done, not {self.during}")
        if seen.during_timeouts > self.timeouts:
            found.append(f"{seen.during_timeouts} without an answer, not {self.timeouts}")
        if self.share_last is not None and seen.share_last > self.share_last:
            found.append(f"{seen.share_last:.3f} still went to it, not {self.share_last}")
        longest = self.recovered_seconds
        if longest is not None and seen.recovered_seconds > longest:
            found.append(f"back after {seen.recovered_seconds:.1f} s, not {longest}")
        if seen.after_failures > self.after_failures:
            found.append(f"{seen.after_failures} failed afterwards, not {self.after_failures}")
        return found


_MODEST = Promise(
    "the others do what they can; it is tried with one query at a time, and used as soon as it "
    "says something else",
    during=0.95,
    share_last=0.05,
)

_LATE_REFUSALS = 250
"""In the last second of a run: the smaller two workers lack a third of 1,250 a second, for the 0.6
s that a worker may be late, and a tenth of a second more by chance."""

_ERRORS = Promise(
    "errors are no fast successes: hardly anything goes there after a second, and a probe now and "
    "then finds out that it can work again; until then what the others cannot do is refused",
    during=0.95,
    share_last=0.03,
    recovered_seconds=1.6,
    after_failures=_LATE_REFUSALS,
)
_HALF = Promise(
    "the same: the others fail nothing, and are asked instead, as far as they can",
    during=0.95,
    share_last=0.08,
    recovered_seconds=1.2,
    after_failures=_LATE_REFUSALS,
)
_CALLERS = Promise(
    "what fails everywhere is nobody's fault: nobody is held back, and the good ones are done",
    during=0.95,
)
_HUNG = Promise(
    "it costs what it had, since nobody repeats what may have been done; the others do the rest",
    during=0.95,
    timeouts=80,
    recovered_seconds=1.2,
)
_VANISHED = Promise("the others do what they can, and it is used when it is back", during=0.95)
_FLOOR = Promise("from the floor a limit doubles while it is used", recovered_seconds=1.2)
_AS_KNOWN = Promise("what was known still holds, and answers still tell", during=0.95)
_NEWEST = Promise("the newest counts, whatever comes after it", during=0.95)
_CLOCKS = Promise("only durations count, each by one clock", during=0.95)
_ONE_PERMIT = Promise(
    "as from the floor; what was in flight may come too late",
    timeouts=60,
    recovered_seconds=1.2,
)

_BOASTS = Promise(
    "whoever boasts gets what he can do: his refusals tell, and the others do the rest",
    during=0.95,
)

PROMISES: Mapping[str, Promise] = {
    "hung": _HUNG,
    "vanished": _VANISHED,
    "liar-zero": _MODEST,
    "liar-negative": _MODEST,
    "liar-huge": _BOASTS,
    "liar-greedy": Promise(
        "nothing gives it away but the time that its answers take: some are too late, a few in a "
        "hundred, then others are faster; for so long it is not used again",
        during=0.9,
        timeouts=120,
        recovered_seconds=None,
    ),
    "reports-stop": _AS_KNOWN,
    "reports-out-of-order": _NEWEST,
    "reports-jump": Promise(
        "the lower end is believed, which leaves enough for this load", during=0.85
    ),
    "clocks-differ": _CLOCKS,
    "all-refuse": Promise(
        "nobody can be served, but everybody is told so at once, but for one in the line now and "
        "then; afterwards each is tried within a second",
        timeouts=10,
        recovered_seconds=1.0,
    ),
    "fast-errors": _ERRORS,
    "half-errors": _HALF,
    "callers-fault": _CALLERS,
    "floor": _FLOOR,
    "one-permit": _ONE_PERMIT,
}
"""By fault; under `adaptive`, at seven tenths of the capacity, whichever worker it strikes."""

IDLE_PROMISES: Mapping[str, Promise] = {
    "hung": Promise(
        "the same, but where nobody has suspected it yet it gets others for those that timed out",
        during=0.7,
        timeouts=120,
        recovered_seconds=None,
        after_failures=_LATE_REFUSALS,
    ),
    "vanished": _VANISHED,
    "liar-zero": _MODEST,
    "liar-negative": _MODEST,
    "liar-huge": _BOASTS,
    "liar-greedy": Promise(
        "nothing gives it away, but it has no more than its turn while others have room: a third "
        "of the queries; some are late, and what it has piled up it does first",
        during=0.75,
        timeouts=120,
        recovered_seconds=None,
    ),
    "reports-stop": _AS_KNOWN,
    "reports-out-of-order": _NEWEST,
    "clocks-differ": _CLOCKS,
    "all-refuse": Promise("slots are on offer as before, so whoever can work again is used"),
    "fast-errors": _ERRORS,
    "half-errors": _HALF,
    "callers-fault": _CALLERS,
    "floor": _FLOOR,
    "one-permit": _ONE_PERMIT,
}
"""The same under `idle`, which believes what workers offer until they refuse it. Of limits that
jump nothing is promised."""


def promise(policy: str, fault: str) -> Promise | None:
    """What a policy promises, if anything."""
    made = {"adaptive": PROMISES, "idle": IDLE_PROMISES}.get(policy, {})
    return made.get(fault)
