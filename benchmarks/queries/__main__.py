"""All four in one run: `python -m benchmarks.queries`; what there is to say is in `__init__.py`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import against
from benchmarks.measuring import PUBLISHED, RESULTS, Result
from benchmarks.queries import echo, http, mix, pictures, stream, versions
from benchmarks.queries.running import Figures, Run, Section
from benchmarks.tasks.processes import ROOT, Unavailable
from maitred.simulation.pictures import PicturesUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

ROUNDS = 5
QUICK_ROUNDS = 1
QUIET_LOAD = 0.5
STUDY = ROOT / "docs"
"""Where the picture and the figures of the mix are published."""

SECTIONS: dict[str, Callable[[Run], None]] = {
    "echo": echo.measure,
    "http": http.measure,
    "stream": stream.measure,
    "mix": mix.measure,
}


def line(result: Result) -> str:
    verdict = "MEETS" if result.met else "MISS "
    goal = f"goal {'>=' if result.at_least else '<='} {result.goal:g}"
    return f"{verdict} {result.name}: {result.ratio:.2f} ({goal}); {result.ours}; {result.peer}"


def document(sections: Mapping[str, Section], load: float) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load average before": round(load, 1),
        "sections": {
            name: {
                "goals": [
                    {
                        "goal": result.name,
                        "is": _rounded(result.ratio),
                        "should be": result.goal,
                        "at least": result.at_least,
                        "met": result.met,
                        "ours": result.ours,
                        "peer": result.peer,
                    }
                    for result in section.results
                ],
                "medians": {of: _all_rounded(each) for of, each in section.medians.items()},
                "rounds": {
                    of: [_all_rounded(each) for each in rounds]
                    for of, rounds in section.rounds.items()
                },
                "absent": section.absent,
                "commands": section.commands,
            }
            for name, section in sections.items()
        },
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _all_rounded(figures: Figures) -> Figures:
    return {name: _rounded(value) for name, value in figures.items()}


def tables(sections: Mapping[str, Section]) -> str:
    """The medians, one table a section; figures that not everybody has are left empty."""
    told = []
    for title, section in sections.items():
        names = list(dict.fromkeys(of for each in section.medians.values() for of in each))
        rows = [[title, *names]]
        rows += [
            [who, *(f"{each[of]:,.4g}" if of in each else "" for of in names)]
            for who, each in section.medians.items()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        told += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        told.append("")
    return "\n".join(told)


def page(sections: Mapping[str, Section], load: float) -> str:
    """The same for people, to be read or copied into docs/benchmarks.md."""
    told = [f"CPython {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before."]
    for title, section in sections.items():
        names = list(dict.fromkeys(of for each in section.medians.values() for of in each))
        told += ["", f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for who, each in section.medians.items():
            cells = [_short(each[of]) if of in each else "" for of in names]
            told.append(f"| {who} | {' | '.join(cells)} |")
    told += ["", "| goal | is | should be | |", "|---|---|---|---|"]
    for result in (result for section in sections.values() for result in section.results):
        bound = f"{'at least' if result.at_least else 'at most'} {result.goal:g}"
        verdict = "" if result.met else "**missed**"
        figures = f"{_short(result.ratio)} ({result.ours}; {result.peer})"
        told.append(f"| {result.name} | {figures} | {bound} | {verdict} |")
    return "\n".join(told) + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def run(name: str, *, quick: bool, rounds: int) -> Section:
    section = Section()
    started = time.monotonic()
    print(f"\n{name}", flush=True)
    try:
        with Run(section, quick=quick, rounds=rounds) as it:
            SECTIONS[name](it)
    except Unavailable as reason:
        section.absent[name] = str(reason)
        print(f"  {name}: FAILED, {reason}")
    print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return section


def measure(
    folder: Path, names: Iterable[str] = SECTIONS, *, quick: bool = False, rounds: int = ROUNDS
) -> dict[str, Section]:
    """Run them, print what came of it, and leave figures and pictures in the folder."""
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"The load average is {load:.1f}: others use this machine, rates will be low.")
    sections = {name: run(name, quick=quick, rounds=rounds) for name in names}
    print(f"\n{tables(sections)}")
    results = [result for section in sections.values() for result in section.results]
    print(*map(line, results), sep="\n")
    for name, section in sections.items():
        for who, reason in section.absent.items():
            print(f"ABSENT in {name}: {who}: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps(document(sections, load), indent=2) + "\n"
    (folder / "queries.json").write_text(told)
    (folder / "queries.md").write_text(page(sections, load))
    try:
        pictures.draw_speed(sections, folder / "queries.svg")
        if "mix" in sections and sections["mix"].medians:
            study = STUDY / "pictures" if folder == PUBLISHED else folder
            pictures.draw_mix(sections["mix"], study / "queries-mix.svg")
    except PicturesUnavailable as reason:
        print(reason)
    print(f"\n{sum(r.met for r in results)} of {len(results)} goals met; results in {folder}")
    return sections


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work")
    parser.add_argument("--publish", action="store_true", help="write what the documents show")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, {QUICK_ROUNDS} if quick")
    parser.add_argument("--only", action="append", choices=list(SECTIONS))
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="CPU a query of the working tree by that of a commit, in one run; exit status 0 if it "
        f"is at most {against.LIMIT:g}, 1 if it is more, 2 if that cannot be told",
    )
    parser.add_argument(
        "--traced",
        type=float,
        metavar="FRACTION",
        help="CPU a query with this fraction of all traces recorded, by that without any; "
        f"the same with {against.TRACED_LIMIT:g}",
    )
    asked = parser.parse_args()
    # Else whoever ends us with SIGTERM, as `timeout` does, would leave servers and workers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if asked.against or asked.traced is not None:
        names = asked.only or versions.SECTIONS
        if other := set(names) - set(versions.SECTIONS):
            parser.error(f"--against has no {' and no '.join(sorted(other))}")
        start = versions.start(names, quick=asked.quick)
        return against.run_asked(asked, start, RESULTS, "queries")
    sections = measure(
        PUBLISHED if asked.publish else RESULTS,
        asked.only or SECTIONS,
        quick=asked.quick,
        rounds=asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS),
    )
    failed = any(
        section.absent or not all(result.met for result in section.results)
        for section in sections.values()
    )
    return 1 if failed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
