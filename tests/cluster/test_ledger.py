"""The verdict on a run, by hand-written ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.membership.homes import ClusterHomes
from maitred.protocol.tasks import DONE
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


A, B = (f"{host}:{port}" for host, port in NODES.values())


class Story:
    """A ledger that a test writes."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.book = Book(path, "story")
        self.book.note("view", at=0.0, seen_by="a", pushed=False, **view(1, "a", "b"))

    def ran(
        self,
        number: int,
        queue: str,
        at: float,
        *,
        attempt: int = 1,
        pid: int = 7,
        partition: int = 0,
        confirmed: float | None = None,
        late: bool = False,
    ) -> None:
        """A run of a tenth of a second; `confirmed` is when its report was answered."""
        place = f"shop/{queue}/{partition}"
        about = {"n": number, "attempt": attempt, "pid": pid, "task": f"{place}/{number}"}
        self.book.note("began", at=at, **about)
        self.book.note("ended", at=at + 0.1, **about)
        if confirmed is not None:
            ends, ignored = [(number, attempt, DONE)], [number] * late
            about = {"pid": pid, "partition": place, "ends": ends, "late": ignored, "refused": []}
            self.book.note("confirmed", at=confirmed, **about)

    def fault(
        self, kind: str, victim: str, began: float, ended: float, *, cut_from: str = ""
    ) -> None:
        number = int(began * 1000)
        cut = [(victim, cut_from)] if cut_from else []
        self.book.note("fault", at=began, id=number, kind=kind, victims=[victim], cut=cut)
        if kind.startswith("kill"):
            self.book.note("struck", at=began + 0.1, id=number)
        self.book.note("healed", at=ended, id=number)

    def owned(self, queue: str, partition: int, member: str, at: float) -> None:
        place = f"shop/{queue}/{partition}"
        self.book.note("owned", at=at, partition=place, range_id=int(at * 10), member=member)

    def told_forgotten(self, number: int, queue: str, at: float, code: str = "") -> None:
        code = code or "task-forgotten"
        task = f"shop/{queue}/0/{number}"
        self.book.note("failed", at=at, op="result", n=number, task=task, code=code)


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
    story, queue, address = Story(tmp_path), queue_of("a"), A
    story.fault("kill", address, 10.0, 12.0)
    story.ran(1, queue, 9.9)
    story.ran(1, queue, 14.0, attempt=2, pid=8)
    verdict = story.ledger.verdict()
    assert len(verdict.repetitions) == 1
    assert not verdict.unexplained, verdict.unexplained


def test_a_fault_of_another_node_explains_nothing(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("kill", B, 10.0, 12.0)
    story.ran(1, queue, 9.9)
    story.ran(1, queue, 14.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_fault_before_or_after_explains_nothing(tmp_path: Path) -> None:
    story, queue, address = Story(tmp_path), queue_of("a"), A
    story.fault("freeze", address, 1.0, 2.0)
    story.ran(1, queue, 10.0)
    story.ran(1, queue, 12.0, attempt=2)
    story.fault("kill", address, 13.0, 15.0)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_drain_explains_nothing(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("drain", A, 10.0, 12.0)
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
    story.fault("kill", B, 11.0, 12.0)
    story.ran(1, queue, 14.0, attempt=2)
    assert not story.ledger.verdict().unexplained


def test_a_confirmed_end_is_never_explained_away(tmp_path: Path) -> None:
    """The owner was killed when the end of the task was on disk."""
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0, confirmed=9.2)
    story.fault("kill", A, 9.9, 12.0)
    story.ran(1, queue, 14.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_an_end_that_came_too_late_is_not_confirmed(tmp_path: Path) -> None:
    """The owner had given the task to another worker, which did not get it either."""
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("cut from users", A, 9.05, 16.0, cut_from="users")
    story.ran(1, queue, 9.0, confirmed=16.5, late=True)
    story.ran(1, queue, 21.0, attempt=3, pid=8)
    assert not story.ledger.verdict().unexplained


def test_the_confirmed_end_of_any_run_counts(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("kill", A, 9.05, 12.0)
    story.ran(1, queue, 9.0)
    story.ran(1, queue, 13.0, pid=8, confirmed=13.2)
    story.ran(1, queue, 14.0, attempt=2, pid=9)
    story.ran(1, queue, 30.0, attempt=2, pid=9)
    assert [one.reasons != () for one in story.ledger.verdict().repetitions] == [True, False, False]


def test_a_task_that_was_on_its_way_may_begin_when_it_is_over(tmp_path: Path) -> None:
    """The first owner gave it out, and its answer was held up until after the cut."""
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("cut from users", A, 5.0, 13.5, cut_from="users")
    story.ran(1, queue, 13.0, pid=8, confirmed=13.2)
    story.ran(1, queue, 14.0, pid=7)
    (repetition,) = story.ledger.verdict().repetitions
    assert "delayed" in repetition.reasons[0]


def test_two_runs_may_come_at_once_after_a_cut(tmp_path: Path) -> None:
    """The owner gave the task out twice, with a lease in between, and both answers were held up."""
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("cut from users", A, 13.8, 21.1, cut_from="users")
    story.fault("cut from users", B, 33.8, 41.1, cut_from="users")
    for number, at in ((1, 21.2), (2, 41.2), (3, 61.2)):
        story.ran(number, queue, at)
        story.ran(number, queue, at + 0.05, attempt=2)
    explained = [bool(one.reasons) for one in story.ledger.verdict().repetitions]
    assert explained == [True, False, False]


def test_a_fault_that_the_report_did_not_meet_explains_nothing(tmp_path: Path) -> None:
    """No node confirmed the end within ten seconds in which nothing was wrong."""
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0)
    story.fault("kill", A, 19.0, 20.0)
    story.ran(1, queue, 24.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_fault_explains_nothing_before_its_next_owner_gives_anything_out(
    tmp_path: Path,
) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0)
    story.fault("kill", A, 9.05, 20.0)
    story.ran(1, queue, 11.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_node_counts_only_while_it_owns_the_partition(tmp_path: Path) -> None:
    """The view says that `a` owns it, and the database that `b` does."""
    story, queue = Story(tmp_path), queue_of("a")
    story.owned(queue, 0, "a", 0.5)
    story.owned(queue, 0, "b", 5.0)
    story.fault("freeze", A, 9.0, 9.5)
    story.ran(1, queue, 9.0)
    story.ran(1, queue, 15.0, attempt=2, pid=8)
    story.fault("freeze", B, 20.0, 20.5)
    story.ran(2, queue, 20.0)
    story.ran(2, queue, 26.0, attempt=2, pid=8)
    unexplained, explained = story.ledger.verdict().repetitions
    assert (unexplained.number, unexplained.reasons) == (1, ())
    assert explained.reasons


def test_the_next_life_of_a_killed_owner_is_no_reason(tmp_path: Path) -> None:
    """The node is started again, which takes a while; its next attempts have nothing to do with the
    kill."""
    story, queue = Story(tmp_path), queue_of("a")
    story.fault("kill", A, 5.0, 20.0)
    story.ran(1, queue, 9.0)
    story.ran(1, queue, 15.0, attempt=2, pid=8)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_cut_between_two_nodes_explains_only_tasks_that_visit_the_parent(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.owned(queue, 0, "a", 0.5)
    story.owned(queue, 1, "b", 0.5)
    story.owned("other", 0, "a", 0.5)
    story.owned("other", 1, "a", 0.5)
    story.fault("cut from node", B, 9.05, 12.0, cut_from=A)
    for number, name, partition in ((1, queue, 1), (2, queue, 0), (3, "other", 1)):
        story.ran(number, name, 9.0, partition=partition)
        story.ran(number, name, 15.0, partition=partition, attempt=2, pid=8)
    verdict = story.ledger.verdict()
    assert [one.number for one in verdict.repetitions if one.reasons] == [1]


def test_the_death_of_a_worker_that_had_reported_explains_nothing(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0, pid=7)
    story.fault("kill worker", "7", 15.0, 15.1)
    story.fault("kill worker", "8", 9.05, 9.1)
    story.ran(1, queue, 21.0, attempt=2, pid=9)
    assert len(story.ledger.verdict().unexplained) == 1


def test_a_forgotten_result_is_explained_if_its_owner_was_lost_with_it(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0, confirmed=13.0)
    story.ran(2, queue, 9.0, confirmed=9.2)
    story.ran(3, queue, 9.0, confirmed=13.0)
    story.fault("kill", A, 9.3, 12.0)
    story.told_forgotten(1, queue, 14.0)
    story.told_forgotten(2, queue, 14.0)
    story.told_forgotten(3, queue, 14.0, "unknown-task")
    verdict = story.ledger.verdict()
    assert [bool(one.reasons) for one in verdict.forgotten] == [True, False, False]
    assert not verdict.is_clean
    assert "3 forgotten results, 2 unexplained" in str(verdict)


def test_a_forgotten_result_needs_a_fault_of_its_own_owner(tmp_path: Path) -> None:
    story, queue = Story(tmp_path), queue_of("a")
    story.ran(1, queue, 9.0)
    story.fault("kill", B, 9.05, 12.0)
    story.fault("drain", A, 9.05, 12.0)
    story.told_forgotten(1, queue, 14.0)
    assert len(story.ledger.verdict().unexplained) == 1


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    path = tmp_path / "half.jsonl"
    path.write_text('{"what":"ended","at":1.0,"n":1}\n{"what":"ended","at":1.')
    assert ledger.ended == {1}
    path.write_text('{"what":"ended","at":1.0,"n":1}\n{"what":"ended","at":1.0,"n":2}\n')
    assert ledger.ended == {1, 2}
