"""The verdict on a run, by hand-written ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.membership.homes import ClusterHomes
from maitred.routing.names import TASKS
from tests.cluster.ledger import NAMESPACE, Book, Ledger, view_of

if TYPE_CHECKING:
    from pathlib import Path

NODES = {"a": ("127.0.0.11", 4747), "b": ("127.0.0.12", 4747)}


def view(version: int, *names: str) -> dict[str, Any]:
    members = [[name, *NODES[name], 1, "active"] for name in names]
    return {"version": version, "spread_batch": "0", "placement": "wrap", "members": members}


def owner(names: str, queue: str) -> str:
    homes = ClusterHomes(view_of(view(1, *names)))
    return homes.home((NAMESPACE, queue, TASKS, 0), 0.0).member.name


def queue_of(name: str) -> str:
    """A queue that this node owns while both are there."""
    address = f"{NODES[name][0]}:4747"
    return next(f"q{number}" for number in range(100) if owner("ab", f"q{number}") == address)


class Story:
    """A ledger that a test writes."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.book = Book(path, "story")
        self.book.note("view", at=0.0, seen_by="a", pushed=False, **view(1, "a", "b"))

    def ran(self, number: int, queue: str, at: float, *, attempt: int = 1, pid: int = 7) -> None:
        about = {"n": number, "attempt": attempt, "pid": pid, "task": f"shop/{queue}/0/{number}"}
        self.book.note("began", at=at, **about)
        self.book.note("ended", at=at + 0.1, **about)

    def fault(self, kind: str, victim: str, began: float, ended: float) -> None:
        number = int(began * 1000)
        self.book.note("fault", at=began, id=number, kind=kind, victims=[victim])
        self.book.note("healed", at=ended, id=number)


def test_lost_tasks_are_those_that_were_acknowledged_and_did_not_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for number in (1, 2):
        story.book.note("acked", n=number, q="q0", task=f"shop/q0/0/{number}", sent=0.9, at=1.0)
    story.book.note("failed", op="enqueue", n=3, q="q0", code="x", outcome="unknown", sent=1.0)
    story.ran(1, "q0", 1.0)
    story.ran(3, "q0", 1.0)
    verdict = story.ledger.verdict()
    assert verdict.lost == {2}
    assert story.ledger.missing() == {2}
    assert not verdict.is_clean
    assert verdict.failures == {("enqueue", "x"): 1}
    assert not verdict.repetitions


def test_a_repetition_is_explained_by_a_fault_of_the_owner_in_between(tmp_path: Path) -> None:
    story, queue, address = Story(tmp_path), queue_of("a"), "127.0.0.11:4747"
    story.fault("kill", address, 10.0, 12.0)
    story.ran(1, queue, 9.9)
    story.ran(1, queue, 14.0, attempt=2, pid=8)
    verdict = story.ledger.verdict()
    assert len(verdict.repetitions) == 1
    assert not verdict.unexplained, verdict.unexplained


def test_a_fault_of_another_node_explains_nothing(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("kill", "127.0.0.12:4747", 10.0, 12.0)
    story.ran(1, queue, 9.9)
    story.ran(1, queue, 14.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_fault_before_or_after_explains_nothing(tmp_path: Path) -> None:
    story, queue, address = Story(tmp_path), queue_of("a"), "127.0.0.11:4747"
    story.fault("freeze", address, 1.0, 2.0)
    story.ran(1, queue, 10.0)
    story.ran(1, queue, 12.0, attempt=2)
    story.fault("kill", address, 13.0, 15.0)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_drain_explains_nothing(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("drain", "127.0.0.11:4747", 10.0, 12.0)
    story.ran(1, queue, 9.9)
    story.ran(1, queue, 11.0, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_the_death_of_the_worker_explains_a_repetition(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("kill worker", "7", 10.0, 10.1)
    story.ran(1, queue, 9.9, pid=7)
    story.ran(1, queue, 17.0, attempt=2, pid=8)
    assert not story.ledger.verdict().unexplained


def test_a_later_owner_counts_as_well(tmp_path: Path) -> None:
    """The partition moved from a killed node to another one, which was killed in turn."""
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.9)
    story.book.note("view", at=10.0, seen_by="b", pushed=True, **view(2, "b"))
    story.fault("kill", "127.0.0.12:4747", 11.0, 12.0)
    story.ran(1, queue, 14.0, attempt=2)
    assert not story.ledger.verdict().unexplained


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    path = tmp_path / "half.jsonl"
    path.write_text('{"what":"ended","at":1.0,"n":1}\n{"what":"ended","at":1.')
    assert ledger.ended == {1}
    path.write_text('{"what":"ended","at":1.0,"n":1}\n{"what":"ended","at":1.0,"n":2}\n')
    assert ledger.ended == {1, 2}
