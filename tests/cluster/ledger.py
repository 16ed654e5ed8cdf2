"""What the processes of a run did and were told, in files, and the verdict on it.

Each process appends lines of JSON to a file of its own, each with one `write`, so that a line is
whole or missing, and is there even if the process is killed right after it. Times are seconds of
the monotonic clock, which all processes of a machine share.

A run is right if every acknowledged task ran to its end, every repetition is explained, and so is
every caller that was told that the result of its task is forgotten.

A repetition, a task that was begun again, is explained in one of these ways:

- The worker that began it first was killed before a node had confirmed the end.
- The node that owned the task's partition lost its memory, or was cut off from workers or from the
  database, while the attempt was given out, ran or was reported, and so long before the next one
  that another owner, or the same one at the end of the lease, could give it out again. For a
  partition with a parent, the node that owned the parent counts as well, and so does a cut between
  the two: the parent may have given out the task.
- A run reached its worker late, since the owner that had given it out was frozen or cut off from
  workers: the lease of the first run was over when it began, or the second one had been given out
  before a node confirmed the end of the first.

Nothing explains that a task is given out after a node has confirmed its end. Faults of other nodes,
earlier and later ones of the owner, and drains, explain nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import json

from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol.tasks import DONE
from maitred.routing.names import TASKS
from maitred.routing.tree import parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    Entry = dict[str, Any]
    Run = tuple[str, int, int]
    """One call of a handler: the task's id, the attempt, and the worker's process id."""

LEDGER_VARIABLE = "CLUSTER_LEDGER"
"""The variable of the environment with the directory of the files."""

SETTLE_SECONDS, SETTLE_MAX_SECONDS = 2.0, 15.0
"""After the end of a cut or a freeze its consequences last as long as the fault itself, since TCP
doubles its pauses between retransmissions, but within these bounds."""

MOVED_SECONDS = 2.0
"""For so long after a partition got another owner, workers may report to the previous one."""

LOOK_SECONDS = 0.5
"""The most that a new owner is noticed late, on a busy machine."""

DELIVERY_SECONDS = 2.0
"""The longest time from the moment at which an owner gives out a task until its worker begins it,
if nothing is wrong but that the machine is busy."""

REPORT_SECONDS = 3.0
"""The longest time from the end of an attempt until its report is confirmed, if nothing is wrong
but that the machine is busy: a fault that begins later cannot be the reason that it is not."""

RECOVERY_SECONDS = 3.0
"""An owner that was not told of running attempts gives out nothing for this time
(`recovery_seconds`), and a lease is longer, so no fault is the cause of a repetition that comes
sooner after its beginning."""

LEASE_SECONDS = 10.0
"""The longest lease of a task in a run: no worker begins a task that was given out earlier."""

KILLS = frozenset({"kill", "kill supervisor", "kill worker"})
"""Faults that are over once the process is gone: what another process does later is not their
consequence."""

HARMLESS = frozenset({"drain"})
"""Faults that explain nothing: nothing is lost in them."""

FORGOTTEN = frozenset({"task-forgotten", "unknown-task"})
"""What callers hear of acknowledged tasks whose result was lost."""

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
    """When its consequences were over."""
    cut: tuple[tuple[str, str], ...] = ()
    """The links that were cut: between nodes, or of a node to `users` or `database`."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.victim} from {self.began:.3f} to {self.ended:.3f}"

    @property
    def makes_memory_useless(self) -> bool:
        """Whether the node, or what it has in memory, was out of reach for workers or database."""
        if self.kind in HARMLESS:
            return False
        others = {name for pair in self.cut for name in pair}
        return not self.cut or bool(others & {"users", "database"})

    @property
    def delays_delivery(self) -> bool:
        """Whether a task that the node had given out could reach its worker later."""
        return self.kind == "freeze" or any("users" in pair for pair in self.cut)

    def cuts(self, one: str, other: str) -> bool:
        """Return whether the link between these two nodes was cut."""
        return (one, other) in self.cut or (other, one) in self.cut

    def during(self, first: float, last: float) -> tuple[float, float] | None:
        """Return its part between these times; None if there is none."""
        start, end = max(self.began, first), min(self.ended, last)
        return (start, end) if start <= end else None


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
    ended: float | None = None
    """When the first run ended; None if it did not."""
    confirmed: float | None = None
    """When a node confirmed that the task is done, by whichever run; None if none did."""

    def __str__(self) -> str:
        start = self.first["at"]
        waited = self.again["at"] - start
        ended = "never ended" if self.ended is None else f"ended after {self.ended - start:.3f} s"
        told = (
            "no node confirmed an end"
            if self.confirmed is None
            else f"an end was confirmed after {self.confirmed - start:.3f} s"
        )
        return (
            f"{self.number} ({self.first['task']}, attempt {self.first['attempt']}, worker "
            f"{self.first['pid']}) began at {start:.3f}, {ended}, {told}, and began again after "
            f"{waited:.3f} s ({self.again['task']}, attempt {self.again['attempt']}, worker "
            f"{self.again['pid']}); owners: {', '.join(self.owners)}; "
            f"{'; '.join(self.reasons) or 'UNEXPLAINED'}"
        )


@dataclass(frozen=True)
class ForgottenResult:
    """A caller that was told that the result of an acknowledged task is not known any more."""

    told: Entry
    reasons: tuple[str, ...]
    """The faults that explain it; empty if none does."""

    def __str__(self) -> str:
        return (
            f"{self.told['n']} ({self.told['task']}): its caller was told {self.told['code']} at "
            f"{self.told['at']:.3f}; {'; '.join(self.reasons) or 'UNEXPLAINED'}"
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
    forgotten: list[ForgottenResult] = field(default_factory=list)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that ended with an error, by kind of request and code."""
    faults: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    """Queries that were answered."""

    @property
    def unexplained(self) -> list[Repetition | ForgottenResult]:
        found: list[Repetition | ForgottenResult] = [*self.repetitions, *self.forgotten]
        return [one for one in found if not one.reasons]

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.unexplained and not self.wrong

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Verdict:
        verdict = cls()
        acknowledged: set[int] = set()
        ended: set[int] = set()
        runs: dict[int, list[Entry]] = defaultdict(list)
        explanations = Explanations(entries)
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
        for number, begun in runs.items():
            for first, again in pairwise(begun):
                verdict.repetitions.append(explanations.repetition(number, first, again))
        for entry in entries:
            if entry["what"] == "failed" and entry["op"] == "result" and entry["code"] in FORGOTTEN:
                verdict.forgotten.append(explanations.forgotten(entry, runs[entry["n"]]))
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
        repeated = sum(not one.reasons for one in self.repetitions)
        forgotten = sum(not one.reasons for one in self.forgotten)
        return (
            f"{sum(self.faults.values())} faults ({faults}); {self.acknowledged:,} tasks "
            f"acknowledged, {len(self.lost)} lost; {len(self.repetitions)} repetitions, "
            f"{repeated} unexplained; {len(self.forgotten)} forgotten results, {forgotten} "
            f"unexplained; {self.answered:,} queries answered, "
            f"{len(self.wrong)} wrong answers; failed requests: {failures or 'none'}"
        )


class Explanations:
    """Finds the faults that explain what should not happen without one."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._faults = _faults(entries)
        self._history = OwnerHistory()
        self._ended: dict[Run, float] = {}
        self._confirmed: dict[str, float] = {}
        """When a node first confirmed that a task is done, by the task's id."""
        for entry in entries:
            match entry["what"]:
                case "view":
                    self._history.add(entry)
                case "owned":
                    self._history.acquired(entry)
                case "ended":
                    self._ended.setdefault(_run(entry), entry["at"])
                case "confirmed":
                    self._confirm(entry)

    def _confirm(self, entry: Entry) -> None:
        # Ends that are late did not count: the task was with another worker by then, or over.
        ignored = {*entry["late"], *entry["refused"]}
        for sequence, _, how in entry["ends"]:
            if how == DONE and sequence not in ignored:
                self._confirmed.setdefault(f"{entry['partition']}/{sequence}", entry["at"])

    def repetition(self, number: int, first: Entry, again: Entry) -> Repetition:
        """Explain why a task was begun again."""
        start, end = first["at"], again["at"]
        ended = self._ended.get(_run(first))
        confirmed = self._confirmed.get(first["task"])
        if confirmed is not None and confirmed < end:
            # It must have been given out before the end was confirmed.
            found = self._of_delivery(again["task"], end - LEASE_SECONDS, confirmed)
        else:
            reported = end if ended is None else min(end, ended + REPORT_SECONDS)
            found = self._of_worker(first["pid"], start, reported)
            last = min(end - RECOVERY_SECONDS, reported)
            found += self._of_owners(first["task"], start - DELIVERY_SECONDS, last)
            if not found and last < start:
                # The lease of the first run was over when it began: it had been given out earlier.
                found = self._of_delivery(first["task"], end - LEASE_SECONDS, last, start)
        return Repetition(
            number=number,
            first=first,
            again=again,
            reasons=tuple(found),
            owners=self._history.owners(_partition(first["task"]), start, end),
            ended=ended,
            confirmed=confirmed,
        )

    def forgotten(self, told: Entry, runs: Sequence[Entry]) -> ForgottenResult:
        """Explain why the result of a task was lost: its owner was, before a node had confirmed an
        end of the task, which it does when the result is on disk or nobody is left to store it."""
        found: list[str] = []
        confirmed = self._confirmed.get(told["task"], inf)
        for begun in runs:
            ended = self._ended.get(_run(begun), inf)
            last = min(confirmed, told["at"], ended + REPORT_SECONDS)
            found += self._of_owners(begun["task"], begun["at"] - DELIVERY_SECONDS, last)
        return ForgottenResult(told, tuple(found) if told["code"] == "task-forgotten" else ())

    def _of_worker(self, pid: int, first: float, last: float) -> list[str]:
        return [
            str(fault)
            for fault in self._faults
            if fault.victim == str(pid) and fault.during(first, last)
        ]

    def _of_owners(self, task: str, first: float, last: float) -> list[str]:
        """The faults in this time that hit a node which owned the task's partition then."""
        partition = _partition(task)
        above = _parent(partition)
        found = []
        for fault in self._faults:
            part = fault.during(first, last)
            if part is None:
                continue
            owners = self._history.owners(partition, *part)
            parents = self._history.owners(above, *part) if above else ()
            if fault.makes_memory_useless and fault.victim in owners:
                found.append(str(fault))
            elif fault.makes_memory_useless and fault.victim in parents:
                found.append(f"{fault}, which owned the parent {above}")
            elif any(fault.cuts(one, other) for one in owners for other in parents):
                found.append(f"{fault}, between the owners of {partition} and its parent")
        return found

    def _of_delivery(self, task: str, first: float, last: float, begun: float = -inf) -> list[str]:
        """The faults in this time that kept what the owner had given out from its worker, if need
        be until shortly before the worker began it."""
        partition = _partition(task)
        above = _parent(partition)
        found = []
        for fault in self._faults:
            part = fault.during(first, last)
            if part is None or not fault.delays_delivery or fault.ended < begun - DELIVERY_SECONDS:
                continue
            givers = self._history.owners(partition, *part)
            givers += self._history.owners(above, *part) if above else ()
            if fault.victim in givers:
                found.append(f"{fault}, which delayed what it had given out")
        return found


class OwnerHistory:
    """The owners of partitions over time: those that the database's rows named, or, of partitions
    that nobody looked at, those by the versions of the membership table."""

    def __init__(self) -> None:
        self._views: dict[int, tuple[float, ClusterHomes | None]] = {}
        self._addresses: dict[str, str] = {}
        """Of members, by id."""
        self._acquired: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """When which member was found to have acquired a partition."""

    def add(self, entry: Entry) -> None:
        """Take in a view that somebody saw; the first who saw a version counts."""
        for id_, host, port, *_ in entry["members"]:
            self._addresses[id_] = f"{host}:{port}"
        version = int(entry["version"])
        if version in self._views and self._views[version][0] <= entry["at"]:
            return
        view = view_of(entry)
        self._views[version] = (entry["at"], ClusterHomes(view) if view.active else None)

    def acquired(self, entry: Entry) -> None:
        """Take in that a partition has an owner that it did not have at the look before."""
        self._acquired[entry["partition"]].append((entry["at"], entry["member"]))

    def owners(self, partition: str, first: float, last: float) -> tuple[str, ...]:
        """The addresses of all owners of the partition (`shop/q0/1`) between these times, and of
        those before them to whom workers may still have reported."""
        found: list[str] = []
        known = self._acquired.get(partition)
        for owner in (
            self._rows(known, first, last) if known else self._homes(partition, first, last)
        ):
            if owner not in found:
                found.append(owner)
        return tuple(found)

    def _rows(self, known: Sequence[tuple[float, str]], first: float, last: float) -> Iterator[str]:
        for number, (seen, member) in enumerate(known):
            until = known[number + 1][0] if number + 1 < len(known) else inf
            if seen <= last + LOOK_SECONDS and first <= until + MOVED_SECONDS:
                yield self._addresses.get(member, member)

    def _homes(self, partition: str, first: float, last: float) -> Iterator[str]:
        _, queue, index = partition.split("/")
        ordered = [self._views[version] for version in sorted(self._views)]
        for number, (seen, homes) in enumerate(ordered):
            until = ordered[number + 1][0] if number + 1 < len(ordered) else inf
            # Those who heard of a version late acted by the one before.
            if seen <= last and first <= until + MOVED_SECONDS and homes is not None:
                yield homes.home((NAMESPACE, queue, TASKS, int(index)), 0.0).member.name


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


def _run(entry: Entry) -> Run:
    return entry["task"], entry["attempt"], entry["pid"]


def _partition(task: str) -> str:
    return task.rpartition("/")[0]


def _parent(partition: str) -> str:
    """The partition to which this one forwards; empty if it is the root."""
    queue, _, index = partition.rpartition("/")
    above = parent(int(index))
    return "" if above is None else f"{queue}/{above}"


def _faults(entries: Iterable[Entry]) -> list[Fault]:
    """All faults; one without an end lasts until the end of the run."""
    began: dict[int, Entry] = {}
    struck: dict[int, float] = {}
    healed: dict[int, float] = {}
    for entry in entries:
        match entry["what"]:
            case "fault":
                began[entry["id"]] = entry
            case "struck":
                struck[entry["id"]] = entry["at"]
            case "healed":
                healed[entry["id"]] = entry["at"]
    return [
        Fault(
            kind=entry["kind"],
            victim=victim,
            began=entry["at"],
            ended=_over(entry, struck.get(id_), healed.get(id_, inf)),
            cut=tuple((one, other) for one, other in entry.get("cut", ())),
        )
        for id_, entry in began.items()
        for victim in entry["victims"]
    ]


def _over(began: Entry, struck: float | None, healed: float) -> float:
    """When the consequences of a fault are over."""
    if began["kind"] in KILLS:
        return healed if struck is None else struck
    lasted = healed - float(began["at"])
    return healed + min(max(lasted, SETTLE_SECONDS), SETTLE_MAX_SECONDS)
