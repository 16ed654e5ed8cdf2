"""What the processes of a run did and were told, in files, and the verdict on it.

Each process appends lines of JSON to a file of its own, each with one `write`, so that a line is
whole or missing, and is there even if the process is killed right after it. Times are seconds of
the monotonic clock, which all processes of a machine share.

A run is right if every acknowledged task ran to its end, and every repetition is explained. A task
that was begun again is explained by a fault between the two beginnings: of the worker that began it
first, or of a node that owned its partition then. A drain explains nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import json

from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    Entry = dict[str, Any]

LEDGER_VARIABLE = "CLUSTER_LEDGER"
"""The variable of the environment with the directory of the files."""

SETTLE_SECONDS, SETTLE_MAX_SECONDS = 2.0, 15.0
"""After the end of a fault its consequences last as long as the fault itself, since TCP doubles its
pauses between retransmissions, but within these bounds."""

HARMLESS = frozenset({"drain"})
"""Faults that explain no repetition: nothing is lost in them."""

NAMESPACE = "shop"


class Book:
    """This process's file of a ledger."""

    def __init__(self, directory: Path | str, name: str) -> None:
        path = os.path.join(directory, f"{name}-{os.getpid()}.jsonl")  # noqa: PTH118 - a string too
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can carry
        """Append a line. Without another time (`at`), it has the present one."""
        entry = {"what": what, "at": time.monotonic(), **fields}
        os.write(self._file, json.encode(entry) + b"\n")


class Ledger:
    """The files of all processes, read as often as one likes, each byte once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._read: dict[Path, int] = {}
        self._entries: list[Entry] = []
        self._ended: set[int] = set()
        self._acknowledged: set[int] = set()
        self._failed: list[Entry] = []
        self.view: Entry = {}
        """The newest view that was read."""

    def refresh(self) -> None:
        """Read what is new."""
        self._entries += self.take()

    def take(self) -> list[Entry]:
        """Read and return what is new, and keep of it only which tasks were acknowledged, ran, or
        failed: a run of hours would fill the memory otherwise."""
        entries: list[Entry] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                entry = json.decode(line)
                entries.append(entry)
                if entry["what"] == "ended":
                    self._ended.add(entry["n"])
                elif entry["what"] == "acked":
                    self._acknowledged.add(entry["n"])
                elif entry["what"] == "failed":
                    self._failed.append(entry)
                elif entry["what"] == "view" and entry["version"] >= self.view.get("version", 0):
                    self.view = entry
        return entries

    def entries(self, *kinds: str) -> list[Entry]:
        """All so far, of these kinds, by their times."""
        self.refresh()
        chosen = [entry for entry in self._entries if not kinds or entry["what"] in kinds]
        return sorted(chosen, key=lambda entry: float(entry["at"]))

    @property
    def ended(self) -> set[int]:
        """The tasks that ran to their end."""
        self.refresh()
        return self._ended

    @property
    def acknowledged(self) -> set[int]:
        """The tasks whose producer was told that they are safe."""
        self.refresh()
        return self._acknowledged

    @property
    def failed(self) -> list[Entry]:
        """The requests that ended with an error."""
        self.refresh()
        return self._failed

    def missing(self) -> set[int]:
        """The acknowledged tasks that did not run to their end so far."""
        self.refresh()
        return self._acknowledged - self._ended

    def verdict(self) -> Verdict:
        """What went wrong."""
        return Verdict.of(self.entries())


@dataclass(frozen=True)
class Fault:
    """Something that was done to a node or a worker."""

    kind: str
    victim: str
    """The address of a node (HOST:PORT), or the process id of a worker."""
    began: float
    ended: float

    def overlaps(self, first: float, last: float) -> bool:
        settled = min(max(self.ended - self.began, SETTLE_SECONDS), SETTLE_MAX_SECONDS)
        return self.began <= last and first <= self.ended + settled


@dataclass(frozen=True)
class Repetition:
    """A task that was begun again."""

    number: int
    first: Entry
    again: Entry
    reasons: tuple[str, ...]
    """The faults that explain it; empty if none does."""
    owners: tuple[str, ...] = ()
    """The nodes that owned the partition in between."""

    def __str__(self) -> str:
        waited = self.again["at"] - self.first["at"]
        return (
            f"{self.number} ({self.first['task']}, attempt {self.first['attempt']}, worker "
            f"{self.first['pid']}) began at {self.first['at']:.3f}, and again {waited:.3f} s later "
            f"({self.again['task']}, attempt {self.again['attempt']}, worker {self.again['pid']}); "
            f"owners: {', '.join(self.owners)}; {'; '.join(self.reasons) or 'UNEXPLAINED'}"
        )


@dataclass
class Verdict:
    """What a run showed."""

    acknowledged: int = 0
    ended: int = 0
    lost: set[int] = field(default_factory=set)
    wrong: list[Entry] = field(default_factory=list)
    """Results and answers that were not what was asked for."""
    repetitions: list[Repetition] = field(default_factory=list)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that ended with an error, by kind of request and code."""
    faults: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    """Queries that were answered."""

    @property
    def unexplained(self) -> list[Repetition]:
        return [one for one in self.repetitions if not one.reasons]

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.unexplained and not self.wrong

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Verdict:
        verdict = cls()
        acknowledged: set[int] = set()
        ended: set[int] = set()
        runs: dict[int, list[Entry]] = defaultdict(list)
        history = OwnerHistory()
        faults = _faults(entries)
        for entry in entries:
            match entry["what"]:
                case "acked":
                    acknowledged.add(entry["n"])
                case "ended":
                    ended.add(entry["n"])
                case "began":
                    runs[entry["n"]].append(entry)
                case "answered":
                    verdict.answered += 1
                case "wrong":
                    verdict.wrong.append(entry)
                case "failed":
                    verdict.failures[entry["op"], entry["code"]] += 1
                case "view":
                    history.add(entry)
        for number, begun in runs.items():
            for first, again in pairwise(begun):
                verdict.repetitions.append(_explained(number, first, again, faults, history))
        verdict.acknowledged = len(acknowledged)
        verdict.ended = len(ended)
        verdict.lost = acknowledged - ended
        verdict.faults.update(entry["kind"] for entry in entries if entry["what"] == "fault")
        return verdict

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        failures = ", ".join(
            f"{count} {op} {code}" for (op, code), count in sorted(self.failures.items())
        )
        return (
            f"{sum(self.faults.values())} faults ({faults}); {self.acknowledged:,} tasks "
            f"acknowledged, {len(self.lost)} lost; {len(self.repetitions)} repetitions, "
            f"{len(self.unexplained)} unexplained; {self.answered:,} queries answered, "
            f"{len(self.wrong)} wrong answers; failed requests: {failures or 'none'}"
        )


class OwnerHistory:
    """The owners of partitions over time, by the versions of the membership table."""

    def __init__(self) -> None:
        self._views: dict[int, tuple[float, ClusterHomes | None]] = {}

    def add(self, entry: Entry) -> None:
        """Take in a view that somebody saw; the first who saw a version counts."""
        version = int(entry["version"])
        if version in self._views and self._views[version][0] <= entry["at"]:
            return
        view = view_of(entry)
        self._views[version] = (entry["at"], ClusterHomes(view) if view.active else None)

    def owners(self, task: str, first: float, last: float) -> tuple[str, ...]:
        """The addresses of all owners of the task's partition between these times."""
        _, queue, partition, _ = task.rsplit("/", 3)
        found: list[str] = []
        for homes in self._between(first, last):
            owner = homes.home((NAMESPACE, queue, TASKS, int(partition)), 0.0).member.name
            if owner not in found:
                found.append(owner)
        return tuple(found)

    def _between(self, first: float, last: float) -> Iterator[ClusterHomes]:
        ordered = [self._views[version] for version in sorted(self._views)]
        for number, (seen, homes) in enumerate(ordered):
            until = ordered[number + 1][0] if number + 1 < len(ordered) else float("inf")
            # Those who heard of a version late acted by the one before.
            if seen <= last and first <= until + SETTLE_SECONDS and homes is not None:
                yield homes


def view_entry(view: ClusterView) -> Entry:
    """The fields of a view in a ledger."""
    return {
        "version": view.version,
        "spread_batch": view.spread_batch,
        "placement": view.placement,
        "members": [
            [one.id, one.host, one.port, one.shards, one.state.value] for one in view.members
        ],
    }


def view_of(entry: Entry) -> ClusterView:
    """The view of a line in a ledger."""
    return ClusterView(
        cluster="",
        version=entry["version"],
        spread_batch=entry["spread_batch"],
        placement=entry["placement"],
        members=tuple(
            ClusterMember(
                id=id_,
                node="",
                host=host,
                port=port,
                member_port=0,
                shards=shards,
                shard_ports=(),
                state=MemberState(state),
            )
            for id_, host, port, shards, state in entry["members"]
        ),
    )


def _faults(entries: Iterable[Entry]) -> list[Fault]:
    """All faults; one without an end lasts until the end of the run."""
    open_faults: dict[int, Entry] = {}
    found = []
    for entry in entries:
        if entry["what"] == "fault":
            open_faults[entry["id"]] = entry
        elif entry["what"] == "healed":
            began = open_faults.pop(entry["id"])
            found += [
                Fault(began["kind"], victim, began["at"], entry["at"])
                for victim in began["victims"]
            ]
    found += [
        Fault(began["kind"], victim, began["at"], float("inf"))
        for began in open_faults.values()
        for victim in began["victims"]
    ]
    return found


def _explained(
    number: int, first: Entry, again: Entry, faults: list[Fault], history: OwnerHistory
) -> Repetition:
    start, end = first["at"], again["at"]
    owners = history.owners(first["task"], start, end)
    victims = {*owners, str(first["pid"])}
    reasons = tuple(
        f"{fault.kind} of {fault.victim} from {fault.began:.3f} to {fault.ended:.3f}"
        for fault in faults
        if fault.kind not in HARMLESS and fault.victim in victims and fault.overlaps(start, end)
    )
    return Repetition(number, first, again, reasons, owners)
