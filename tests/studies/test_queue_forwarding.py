"""Each rule of the tree, in the smallest situation that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from studies.queue_model.model import partition_tree
from studies.queue_model.offers import TAKEN, Supply, Task
from studies.queue_model.partition import Counters
from studies.queue_model.rates import RateLimit, RateTracker
from studies.queue_model.settings import ModelSettings

from maitred.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NETWORK = 0.001
LOCAL = 0.010


class Stage:
    """A tree without clients: the test puts tasks and polls where it wants them."""

    def __init__(self, loop: SimulatedLoop, **changes: object) -> None:
        defaults: dict[str, object] = {
            "read_partitions": 4,
            "network_seconds": NETWORK,
            "store_write_seconds": 0.005,
        }
        self.settings = ModelSettings(**(defaults | changes))  # type: ignore[arg-type]
        self.loop = loop
        self.counters = Counters()
        self.partitions = partition_tree(loop, self.settings, self.counters)
        self.log: list[tuple[str, object, float]] = []
        """What polls were answered: their name, the task's number or None, and when."""

    def add(self, partition: int, number: int) -> Task:
        task = Task(number, self.loop.time(), 1.0)
        self.partitions[partition].add(task)
        return task

    def poll(self, partition: int, name: str, timeout_seconds: float = 60.0) -> None:
        def deliver(task: Task, answer: Callable[[bool], None]) -> None:
            self.log.append((name, task.number, round(self.loop.time(), 6)))
            answer(TAKEN)

        def empty() -> None:
            self.log.append((name, None, round(self.loop.time(), 6)))

        self.partitions[partition].poll(Supply(self.loop.time() + timeout_seconds, deliver, empty))

    def begin_with(self, partition: int, *numbers: int) -> None:
        self.partitions[partition].begin_with([Task(number, 0.0, 1.0) for number in numbers])

    def run(self, seconds: float) -> None:
        finished = self.loop.create_future()
        self.loop.call_later(seconds, finished.set_result, None)
        failures: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: failures.append(context))
        self.loop.run_until_complete(finished)
        assert not failures, failures


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.close()


def test_a_task_meets_a_poll_that_waits(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(1, "poll")
    stage.run(0.005)
    stage.add(1, 7)
    assert stage.log == [("poll", 7, 0.005)]
    assert not stage.counters.stored


def test_a_poll_meets_a_task_within_its_local_wait(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.add(1, 7)
    stage.run(0.009)
    stage.poll(1, "poll")
    assert stage.log == [("poll", 7, 0.009)]
    assert not stage.counters.task_forwards


def test_a_task_alone_at_the_root_is_stored_after_its_local_wait(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.add(0, 7)
    stage.run(LOCAL - 0.001)
    assert stage.counters.stored == 0
    stage.run(0.002)
    assert stage.counters.stored == 1
    assert stage.partitions[0].hint().backlog == 0
    stage.run(0.005)
    assert stage.partitions[0].hint().backlog == 1


def test_a_task_is_forwarded_to_a_poll_at_the_root(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(0, "root")
    task = stage.add(2, 7)
    stage.run(1.0)
    assert stage.log == [("root", 7, LOCAL + NETWORK)]
    assert stage.counters.task_forwards == 1
    assert not task.stored


def test_a_task_is_not_forwarded_without_the_tree(loop: SimulatedLoop) -> None:
    stage = Stage(loop, forwarding=False)
    stage.poll(0, "root")
    task = stage.add(2, 7)
    stage.run(1.0)
    assert stage.log == []
    assert task.stored


def test_only_the_child_stores_a_task_that_was_forwarded_in_vain(loop: SimulatedLoop) -> None:
    stage = Stage(loop, backlog_forward_seconds=0.5)
    stage.add(2, 7)
    # At home, up, at the root, back, and written: then it is the child's head.
    stage.run(LOCAL + NETWORK + LOCAL + NETWORK + 0.005 + 0.001)
    assert stage.counters.stored == 1
    assert [partition.hint().backlog for partition in stage.partitions] == [0, 0, 1, 0]


def test_one_token_lets_one_task_go_up_at_a_time(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    first = stage.add(2, 1)
    second = stage.add(2, 2)
    stage.run(LOCAL + 0.0005)
    assert stage.counters.task_forwards == 1
    assert not first.stored
    assert second.stored


def test_tasks_beyond_the_rate_are_stored(loop: SimulatedLoop) -> None:
    stage = Stage(loop, forward_rate_per_second=2.0)
    for name in range(5):
        stage.poll(0, f"root {name}")
    tasks = []
    for number in range(4):
        tasks.append(stage.add(2, number))
        stage.run(0.02)
    assert [task.stored for task in tasks] == [False, False, True, True]


def test_a_budget_that_is_used_up_forbids_the_forward(loop: SimulatedLoop) -> None:
    stage = Stage(loop, add_budget_seconds=0.005)
    stage.poll(0, "root")
    task = stage.add(2, 7)
    stage.run(0.006)
    assert task.stored


def test_a_poll_is_forwarded_to_a_task_at_the_root(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(2, "child")
    stage.run(0.1)
    assert stage.counters.poll_forwards == 1
    stage.add(0, 7)
    stage.run(0.1)
    assert stage.log == [("child", 7, 0.1 + NETWORK)]


def test_one_token_lets_one_poll_go_up_and_then_the_next(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(2, "first")
    stage.poll(2, "second")
    stage.run(0.1)
    assert stage.counters.poll_forwards == 1
    stage.add(0, 7)
    stage.run(0.1)
    assert stage.counters.poll_forwards == 2
    assert [name for name, _, _ in stage.log] == ["first"]


def test_a_forwarded_poll_is_deaf_at_home(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(2, "away")
    stage.run(0.1)
    stage.add(2, 7)
    stage.run(0.1)
    # The task had to go up as well, although the poll came to its own partition.
    assert stage.log == [("away", 7, round(0.1 + LOCAL + NETWORK + NETWORK, 6))]
    assert stage.counters.task_forwards == 1


def test_a_forwarded_poll_that_listens_at_home_is_found_at_once(loop: SimulatedLoop) -> None:
    stage = Stage(loop, listen_at_home=True)
    stage.poll(2, "away")
    stage.run(0.1)
    stage.add(2, 7)
    stage.run(0.1)
    assert stage.log == [("away", 7, 0.1)]
    assert not stage.counters.task_forwards
    # And it was withdrawn at the root: a task there finds nobody.
    stage.add(0, 8)
    stage.run(0.1)
    assert len(stage.log) == 1
    assert stage.counters.stored == 1


def test_an_empty_answer_of_the_parent_ends_the_poll(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.poll(2, "child", timeout_seconds=1.0)
    stage.run(2.0)
    assert stage.log == [("child", None, 1.0)]
    assert stage.partitions[2].left_over() == []
    assert stage.partitions[0].left_over() == []


def test_two_tasks_for_one_listening_poll_give_it_one(loop: SimulatedLoop) -> None:
    """The root hands a task over while the poll is taken at home: the child refuses it."""
    stage = Stage(loop, listen_at_home=True)
    stage.poll(2, "torn")
    stage.run(0.1)
    at_root = stage.add(0, 1)  # handed over, arrives 1 ms later
    stage.add(2, 2)  # taken at home at once
    stage.run(NETWORK * 1.5)
    assert stage.log == [("torn", 2, 0.1)]
    assert stage.counters.refusals == 1
    # The task at the root is back on offer, and the next poll gets it.
    stage.run(NETWORK)
    stage.poll(0, "root")
    stage.run(0.1)
    assert [(name, number) for name, number, _ in stage.log] == [("torn", 2), ("root", 1)]
    assert not at_root.stored


def test_a_handed_over_task_goes_to_another_poll_that_waits_there(loop: SimulatedLoop) -> None:
    stage = Stage(loop, listen_at_home=True)
    stage.poll(2, "torn")
    stage.run(0.1)
    stage.add(0, 1)
    stage.add(2, 2)
    stage.poll(2, "other")
    stage.run(0.1)
    assert [(name, number) for name, number, _ in stage.log] == [("torn", 2), ("other", 1)]
    assert not stage.counters.refusals


def test_a_refused_task_whose_time_is_over_is_stored(loop: SimulatedLoop) -> None:
    stage = Stage(loop, listen_at_home=True, network_seconds=0.02)
    stage.poll(2, "torn")
    stage.run(0.1)
    at_root = stage.add(0, 1)
    stage.add(2, 2)
    stage.run(0.1)
    assert stage.log == [("torn", 2, 0.1)]
    assert at_root.stored


def test_polls_climb_level_by_level(loop: SimulatedLoop) -> None:
    stage = Stage(loop, degree=1)
    stage.poll(3, "deep")
    stage.run(1.0)
    assert stage.counters.poll_forwards == 3
    stage.add(0, 7)
    stage.run(0.1)
    assert stage.log == [("deep", 7, round(1.0 + 3 * NETWORK, 6))]


@pytest.mark.parametrize("listen_at_home", [False, True])
def test_a_withdrawal_climbs_as_well(loop: SimulatedLoop, listen_at_home: bool) -> None:
    stage = Stage(loop, degree=1, listen_at_home=listen_at_home)
    stage.poll(3, "deep", timeout_seconds=5.0)
    stage.run(1.0)
    stage.add(3, 7)
    stage.run(10.0)
    assert [(name, number) for name, number, _ in stage.log] == [("deep", 7)]
    assert [line for partition in stage.partitions for line in partition.left_over()] == []


def test_the_backlog_is_dispatched_in_order(loop: SimulatedLoop) -> None:
    stage = Stage(loop)
    stage.begin_with(0, 1, 2, 3)
    assert stage.partitions[0].hint().backlog == 3
    for name in "abc":
        stage.poll(0, name)
    assert [(name, number) for name, number, _ in stage.log] == [("a", 1), ("b", 2), ("c", 3)]


def test_the_head_of_the_backlog_goes_up_and_comes_back(loop: SimulatedLoop) -> None:
    stage = Stage(loop, backlog_forward_seconds=0.5)
    stage.begin_with(2, 1)
    stage.run(LOCAL + NETWORK + 0.1)
    assert stage.counters.task_forwards == 1
    # While it is away, a poll at home is not served by it: it follows the head up the tree.
    stage.poll(2, "home")
    stage.run(0.1)
    assert [(name, number) for name, number, _ in stage.log] == [("home", 1)]
    assert stage.counters.poll_forwards == 1
    assert stage.partitions[2].left_over() == []


def test_the_head_waits_at_the_root_no_longer_than_it_may(loop: SimulatedLoop) -> None:
    stage = Stage(loop, backlog_forward_seconds=0.5)
    stage.begin_with(2, 1)
    stage.run(LOCAL + 0.5 + 0.005)
    assert stage.partitions[0].left_over() == []
    stage.run(0.5)
    assert stage.counters.task_forwards == 2
    stage.poll(0, "root")
    stage.run(0.1)
    assert [(name, number) for name, number, _ in stage.log] == [("root", 1)]


def test_without_a_free_rate_the_head_listens_at_home(loop: SimulatedLoop) -> None:
    stage = Stage(loop, forward_rate_per_second=0.0)
    stage.begin_with(2, 1)
    stage.run(1.0)
    assert not stage.counters.task_forwards
    stage.poll(2, "home")
    assert [(name, number) for name, number, _ in stage.log] == [("home", 1)]


def test_hints_tell_backlog_and_rate_and_may_saturate(loop: SimulatedLoop) -> None:
    stage = Stage(loop, hint_backlog_max=2)
    stage.begin_with(0, 1, 2, 3)
    for number in range(20):
        stage.add(0, 10 + number)
    stage.run(11.0)
    hint = stage.partitions[0].hint()
    assert hint.backlog == 2
    assert hint.rate_per_second == 2.0


def test_a_rate_limit_saves_up_one_second() -> None:
    limit = RateLimit(3.0)
    assert [limit.allows(100.0) for _ in range(4)] == [True, True, True, False]
    assert limit.allows(100.34)
    assert not limit.allows(100.34)


def test_a_fractional_rate_does_not_stall() -> None:
    limit = RateLimit(0.5)
    assert [limit.allows(now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert not RateLimit(0.0).allows(1e9)


def test_the_rate_fades_in_idle_buckets() -> None:
    tracker = RateTracker()
    for _ in range(40):
        tracker.add(1.0)
    assert tracker.per_second(5.0) == 0.0
    assert tracker.per_second(10.0) == 4.0
    assert tracker.per_second(20.0) == 2.0
    assert tracker.per_second(40.0) == 0.5
