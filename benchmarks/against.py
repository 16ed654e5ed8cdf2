"""One checkout against another: `--against COMMIT` of `benchmarks.queries` and `benchmarks.tasks`.
`--traced FRACTION` compares the working tree with itself in the same way: with and without traces.

Does this change make a query or a task dearer? The working tree and a checkout of COMMIT each get
processes of their own (node, worker, client), all of them from that one checkout, so the two may
speak different versions of the protocol. They share the interpreter and the installed libraries.

A round starts both sides anew, because a process keeps the memory layout and the hash seed it was
born with, and those alone move its speed by a per cent or two. Within a round the sides take turns
in short slices, ours first and theirs first alternately: whatever else the machine does meets both.
Each round gives one ratio, ours divided by theirs. The result is the median of the ratios with a
confidence interval from their ranks, which assumes nothing about how noise is distributed.

The verdict is about that interval, not about the median: it *holds* if the whole interval is within
the limit, it is *missed* if the whole interval is beyond, and otherwise it is *undecided*: then
more rounds or a quieter machine are needed. The exit status is 0, 1 or 2 accordingly.

The metrics of all processes of a side are scraped once a second, as in production, if it has any.

The driver is the working tree's. What it asks of a checkout is what every one since a4ec4de has:
the commands `maitred up` and `maitred worker`, and the clients' programs of `benchmarks`, which
take orders in JSON.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from math import comb
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.tasks.processes import ROOT, Unavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

LIMIT = 1.03
"""CPU an item, ours divided by theirs, at most."""

TRACED_LIMIT = 1.05
"""The same for a process that records spans, divided by one that does not."""

ROUNDS = 10
"""As many as a verdict needs at least; fewer show that everything works and decide nothing."""

CONFIDENCE = 0.95
SLICES = 4
"""Turns that each side has in a round for each load."""

BUILT_WITHIN = 120
OURS, THEIRS = "ours", "theirs"


class Verdict(IntEnum):
    """What a comparison came to; the value is the exit status."""

    HOLDS = 0
    MISSED = 1
    UNDECIDED = 2


@dataclass(frozen=True)
class Slice:
    """What one turn of one side took."""

    items: int
    seconds: float
    cpu_seconds: float
    """Of all processes of that side."""

    def __add__(self, other: Slice) -> Slice:
        return Slice(
            self.items + other.items,
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
        )

    @property
    def cpu_us(self) -> float:
        """CPU an item, in microseconds."""
        return self.cpu_seconds / self.items * 1e6

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds


@dataclass(frozen=True)
class Spread:
    """The median of some ratios, and between which values it lies with which confidence."""

    middle: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f}, {self.confidence:.0%} sure)"


def spread(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The narrowest pair of ranks that has the confidence; the extremes, if none has it.

    The median lies below the lowest of n values with a chance of 1 in 2^n, and so on: a sign test
    turned round. Ten rounds give the second lowest and the second highest with 97.9 %.
    """
    ordered, count = sorted(ratios), len(ratios)
    chances = [comb(count, under) / 2**count for under in range(count)]
    dropped = 0
    while 2 * sum(chances[: dropped + 2]) <= 1 - confidence:
        dropped += 1
    return Spread(
        middle=median(ordered),
        low=ordered[dropped],
        high=ordered[-1 - dropped],
        confidence=1 - 2 * sum(chances[: dropped + 1]),
    )


@dataclass(frozen=True)
class Comparison:
    """The rounds of one load."""

    name: str
    rounds: list[tuple[Slice, Slice]]
    """Ours and theirs."""
    limit: float = LIMIT

    @property
    def cpu(self) -> Spread:
        return spread([ours.cpu_us / theirs.cpu_us for ours, theirs in self.rounds])

    @property
    def rate(self) -> Spread:
        return spread([ours.rate / theirs.rate for ours, theirs in self.rounds])

    def verdict(self) -> Verdict:
        cpu = self.cpu
        if len(self.rounds) < ROUNDS or cpu.low <= self.limit < cpu.high:
            return Verdict.UNDECIDED
        return Verdict.HOLDS if cpu.high <= self.limit else Verdict.MISSED

    def __str__(self) -> str:
        ours, theirs = (median(pair[side].cpu_us for pair in self.rounds) for side in range(2))
        faster, slower = (median(pair[side].rate for pair in self.rounds) for side in range(2))
        return (
            f"{self.verdict().name:9} {self.name}: CPU an item {self.cpu}, at most {self.limit:g}; "
            f"{ours:.1f} us against {theirs:.1f} us\n"
            f"{'':9} {'':{len(self.name)}}  items a second {self.rate}; "
            f"{faster:,.0f} against {slower:,.0f}"
        )


def overall(comparisons: Sequence[Comparison]) -> Verdict:
    """Missed if any is; undecided if any is, or if there are none."""
    verdicts = {each.verdict() for each in comparisons}
    if Verdict.MISSED in verdicts:
        return Verdict.MISSED
    return Verdict.HOLDS if verdicts == {Verdict.HOLDS} else Verdict.UNDECIDED


@dataclass(frozen=True)
class Checkout:
    """Files of one version, and the environment in which they are what is imported."""

    name: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its processes have besides."""
    scrapes: Counter[str] = field(default_factory=Counter)
    """How often its metrics were scraped, by the kind of process."""

    @property
    def search_path(self) -> str:
        """PYTHONPATH: it comes before what is installed, this version's own install included."""
        return os.pathsep.join([str(self.root / "src"), str(self.root)])

    def uses_c(self) -> bool:
        """Whether its module in C is built; raise `Unavailable` if it is not what is imported."""
        said = _said(
            [sys.executable, "-P", "-c", _PROBE],
            cwd=tempfile.gettempdir(),
            env={**os.environ, "PYTHONPATH": self.search_path},
        ).splitlines()
        for imported in said:
            if imported and not Path(imported).is_relative_to(self.root):
                raise Unavailable(f"{self.name} would run {imported}, which is not its own")
        return bool(said[-1])


_PROBE = """\
import benchmarks, maitred
try:
    from maitred.routing import _tokens
except ImportError:
    _tokens = None
print(benchmarks.__file__, maitred.__file__, _tokens.__file__ if _tokens else "", sep="\\n")
"""


def _said(command: Sequence[str], cwd: str | Path, env: Mapping[str, str] | None = None) -> str:
    return _run(command, cwd, env).decode()


def _run(command: Sequence[str], cwd: str | Path, env: Mapping[str, str] | None = None) -> bytes:
    try:
        return subprocess.run(
            command, cwd=cwd, env=env, check=True, capture_output=True, timeout=BUILT_WITHIN
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        lines = said.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"{command[0]} failed: {lines[-1] if lines else error}") from None


@contextmanager
def checkouts(commit: str) -> Iterator[tuple[Checkout, Checkout]]:
    """The working tree, and the commit's files in a temporary folder that ends with the block.

    An archive instead of `git worktree add`: it leaves nothing in the repository if we are killed.
    """
    words = ["git", "rev-parse", "--verify", "--quiet", "--short", f"{commit}^{{commit}}"]
    try:
        name = _said(words, ROOT).strip()
    except Unavailable:
        raise Unavailable(f"there is no commit {commit} here; is the clone shallow?") from None
    archive = _run(["git", "archive", "--format", "zip", name], ROOT)
    with tempfile.TemporaryDirectory(prefix="maitred-against-") as folder:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder)
        ours, theirs = Checkout("the working tree", ROOT), Checkout(name, Path(folder).resolve())
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], folder)
        if ours.uses_c() != theirs.uses_c():
            raise Unavailable(
                "only one of the two has its module in C; build ours first: "
                "python setup.py build_ext --inplace"
            )
        yield ours, theirs


@contextmanager
def traced(fraction: float) -> Iterator[tuple[Checkout, Checkout]]:
    """The working tree with this fraction of all traces recorded, and without any. A server of this
    process receives the spans; its CPU counts for neither."""
    from benchmarks.receiving import receiver

    with receiver() as port:
        recorded = {
            "MAITRED_TELEMETRY__TRACES": "true",
            "MAITRED_TELEMETRY__SAMPLE": str(fraction),
            "MAITRED_TELEMETRY__PROTOCOL": "grpc",
            "MAITRED_TELEMETRY__ENDPOINT": f"http://127.0.0.1:{port}",
        }
        name = f"the working tree with {fraction:.0%} of all traces"
        yield Checkout(name, ROOT, recorded), Checkout("the same without", ROOT)


Loads = dict[str, "Callable[[], Slice]"]
"""What the running processes of a checkout do for one slice, by name."""


def one_round(
    start: Callable[[ExitStack, Checkout], Loads],
    pair: tuple[Checkout, Checkout],
    *,
    slices: int,
    ours_first: bool,
) -> dict[str, tuple[Slice, Slice]]:
    """For each load, all that ours and theirs did in their slices."""
    done: dict[str, tuple[Slice, Slice]] = {}
    with ExitStack() as stack:
        ours, theirs = (start(stack, checkout) for checkout in pair)
        for name in ours:
            for side in (ours, theirs):
                side[name]()  # warms up, and is not counted
            spent = (Slice(0, 0, 0), Slice(0, 0, 0))
            for number in range(slices):
                if (number % 2 == 0) == ours_first:
                    first = ours[name]()
                    second = theirs[name]()
                else:
                    second = theirs[name]()
                    first = ours[name]()
                spent = (spent[0] + first, spent[1] + second)
            done[name] = spent
    return done


def compare(
    start: Callable[[ExitStack, Checkout], Loads],
    pair: tuple[Checkout, Checkout],
    *,
    rounds: int,
    slices: int,
    limit: float = LIMIT,
) -> list[Comparison]:
    """All rounds, told as they end."""
    found: dict[str, list[tuple[Slice, Slice]]] = {}
    for number in range(rounds):
        began = time.monotonic()
        done = one_round(start, pair, slices=slices, ours_first=number % 2 == 0)
        for name, sides in done.items():
            found.setdefault(name, []).append(sides)
        told = "; ".join(
            f"{name} {ours.cpu_us:.1f} by {theirs.cpu_us:.1f} us = "
            f"{ours.cpu_us / theirs.cpu_us:.3f}, so far "
            f"{median(o.cpu_us / t.cpu_us for o, t in found[name]):.3f}"
            for name, (ours, theirs) in done.items()
        )
        took = time.monotonic() - began
        print(f"round {number + 1} of {rounds}, {took:.0f} s: CPU an item, {told}", flush=True)
    return [Comparison(name, sides, limit) for name, sides in found.items()]


def run(
    pairing: AbstractContextManager[tuple[Checkout, Checkout]],
    start: Callable[[ExitStack, Checkout], Loads],
    result: Path,
    *,
    rounds: int | None,
    quick: bool,
    limit: float = LIMIT,
) -> int:
    """Compare, print, write the result down; the exit status. Quick: one round of one slice."""
    load = os.getloadavg()[0]
    try:
        with pairing as pair:
            print(f"{pair[0].name} against {pair[1].name}; load average {load:.1f}", flush=True)
            found = compare(
                start,
                pair,
                rounds=rounds or (1 if quick else ROUNDS),
                slices=1 if quick else SLICES,
                limit=limit,
            )
            name, scrapes = pair[1].name, [dict(side.scrapes) for side in pair]
    except Unavailable as reason:
        print(f"nothing was compared: {reason}")
        return Verdict.UNDECIDED
    verdict = overall(found)
    print("", *found, "", sep="\n")
    for side, scraped in zip((OURS, THEIRS), scrapes, strict=True):
        print(f"scrapes of {side}: {scraped or 'none, there are no metrics'}")
    print(f"{verdict.name}: {_MEANING[verdict].format(limit)}; result in {result}")
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(_document(name, found, scrapes, load, limit), indent=2) + "\n")
    return verdict


def run_asked(
    asked: argparse.Namespace,
    start: Callable[[ExitStack, Checkout], Loads],
    results: Path,
    name: str,
) -> int:
    """Compare as `--against` or `--traced` says; the exit status."""
    more = {"rounds": asked.rounds, "quick": asked.quick}
    if asked.against:
        return run(checkouts(asked.against), start, results / f"{name}-against.json", **more)
    result = results / f"{name}-traced.json"
    return run(traced(asked.traced), start, result, limit=TRACED_LIMIT, **more)


_MEANING = {
    Verdict.HOLDS: "CPU an item is at most {:g} times that of the other, surely",
    Verdict.MISSED: "CPU an item is more than {:g} times that of the other, surely",
    Verdict.UNDECIDED: f"it takes at least {ROUNDS} rounds, more of them (--rounds) if the "
    "interval has the limit in it, or a quieter machine",
}


def _document(
    name: str,
    found: Sequence[Comparison],
    scrapes: Sequence[Mapping[str, int]],
    load: float,
    limit: float,
) -> dict[str, object]:
    return {
        "against": name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load average before": round(load, 1),
        "limit": limit,
        "verdict": overall(found).name,
        "scrapes": dict(zip((OURS, THEIRS), scrapes, strict=True)),
        "loads": {
            each.name: {
                "verdict": each.verdict().name,
                **{
                    of: {
                        "median": round(value.middle, 4),
                        "low": round(value.low, 4),
                        "high": round(value.high, 4),
                        "confidence": round(value.confidence, 4),
                    }
                    for of, value in (("cpu", each.cpu), ("rate", each.rate))
                },
                "rounds": [
                    {
                        f"{of} {whose}": float(f"{getattr(sides[side], of):.5g}")
                        for side, whose in enumerate((OURS, THEIRS))
                        for of in ("cpu_us", "rate")
                    }
                    for sides in each.rounds
                ],
            }
            for each in found
        },
    }
