"""Tasks and offers that go to the parent, and those that come from children."""

from __future__ import annotations

from maitred.matching.effects import Foreign
from maitred.matching.records import Terms
from maitred.matching.slots import WaitingOffer
from maitred.matching.task import READY, QueueTask
from maitred.protocol.tasks import End
from maitred.settings import Forwarding
from tests.matching.driver import DONE, FAILED, RETURNED, TERMS, Driver, Run, session_of

FOREIGN = Foreign(3, 77, 1, bytes(16), 0.0, b"foreign", 0.1)


def test_a_root_passes_nothing_on() -> None:
    driver = Driver()
    driver.add(5)
    driver.pass_time(5.0)
    driver.take(slots=5)
    driver.offer()
    driver.pass_time(5.0)
    assert driver.partition.tree.passed_tasks == driver.partition.tree.passed_offers == 0


def test_a_task_waits_a_little_at_home_and_then_goes_up() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(task_wait_seconds=0.5))
    driver.add()
    driver.pass_time(0.49)
    assert not driver.passed_tasks
    driver.pass_time(0.02)
    assert len(driver.passed_tasks) == 1
    assert driver.take() == []


def test_no_more_tasks_are_away_than_allowed() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=3))
    driver.add(10)
    driver.pass_time(1.0)
    assert len(driver.passed_tasks) == 3
    driver.answer_task(9)
    assert len(driver.passed_tasks) == 3


def test_no_more_tasks_go_up_than_the_rate_allows() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=1, tasks_per_second=2.0))
    driver.add(100)
    driver.pass_time(0.1)
    for _ in range(50):
        while driver.passed_tasks:
            driver.answer_task(9)
        driver.pass_time(0.1)
    assert 9 <= driver.partition.tree.passed_tasks <= 12


def test_a_task_that_a_worker_of_the_parent_took_is_leased_to_it() -> None:
    driver = Driver(partition=1)
    driver.add()
    driver.pass_time(0.1)
    task = driver.answer_task(9)
    assert task.holder == session_of(9)
    assert not driver.beat(9, driver.given).answered
    driver.finish(driver.given[0])
    driver.pass_time(1.0)
    assert driver.partition.own_tasks.open_tasks == 0
    assert driver.store.empty


def test_a_task_that_nobody_wanted_stands_where_it_stood() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=2))
    numbers = driver.add(3).sequences
    driver.pass_time(0.1)
    waiting = driver.offer(slots=3, turn=False)
    first, second = driver.passed_tasks
    for task in (second, first):
        driver.partition.tree.task_answered(task, b"", "", driver.now)
    driver.turn()
    assert sorted(run.sequence for run in waiting.value) == numbers


def test_a_task_that_nobody_wanted_does_not_use_up_the_rate() -> None:
    driver = Driver(partition=1, rate_per_second=0.02)  # one in a hundred seconds
    driver.add()
    driver.pass_time(0.1)
    driver.offer()
    driver.answer_task(None)
    assert len(driver.given) == 1


def test_a_task_of_which_nobody_knows_who_has_it_belongs_to_who_says_so() -> None:
    driver = Driver(partition=1, lease_seconds=10.0)
    driver.add(terms=Terms(retries=5))
    driver.pass_time(0.1)
    task = driver.lose_task()
    driver.beat(4, [Run(task.sequence, 1, session_of(4))])
    driver.pass_time(9.0)
    assert driver.partition.own_tasks.tasks[task.sequence].holder == session_of(4)
    driver.pass_time(2.0)
    assert driver.partition.attempts.lost == 1


def test_an_expired_task_is_not_passed_on() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=1))
    first, second = driver.add(2, expires=5.0).sequences
    waiting = driver.wait_for(second)
    driver.pass_time(6.0)
    driver.answer_task(9)
    assert driver.given[0].sequence == first
    assert not driver.passed_tasks
    driver.pass_time(1.0)
    assert waiting.value.status == "expired"


def test_an_offer_that_was_passed_on_listens_at_home() -> None:
    driver = Driver(partition=1)
    waiting = driver.offer()
    driver.pass_time(0.1)
    assert driver.passed_offers == [waiting.offer]
    driver.add()
    assert len(waiting.value) == 1
    assert driver.recalled_offers == [waiting.offer]
    driver.answer_offer()
    assert driver.partition.tree.offers_away == 0


def test_what_the_parent_found_for_an_offer() -> None:
    driver = Driver(partition=1)
    waiting = driver.offer()
    driver.pass_time(0.1)
    driver.answer_offer([FOREIGN])
    (run,) = waiting.value
    assert (run.origin, run.sequence, run.payload) == (3, 77, b"foreign")


def test_what_the_parent_found_too_late_is_given_back() -> None:
    driver = Driver(partition=1)
    waiting = driver.offer()
    driver.pass_time(0.1)
    driver.add()
    driver.answer_offer([FOREIGN])
    assert len(waiting.value) == 1
    (told,) = driver.given_back
    assert (told.partition, told.session) == (FOREIGN.partition, session_of(1))
    end = End(FOREIGN.sequence, FOREIGN.attempt, FOREIGN.proof, RETURNED)
    assert told.ends == [end]


def test_what_the_parent_found_for_a_worker_that_left_is_given_back() -> None:
    driver = Driver(partition=1)
    waiting = driver.offer()
    driver.pass_time(0.1)
    driver.withdraw(waiting)
    assert driver.recalled_offers == [waiting.offer]
    driver.answer_offer([FOREIGN])
    assert len(driver.given_back) == 1


def test_an_offer_whose_time_is_up_is_recalled() -> None:
    driver = Driver(partition=1)
    waiting = driver.offer(seconds=1.0)
    driver.pass_time(1.0)
    assert waiting.value == []
    assert driver.recalled_offers == [waiting.offer]


def test_a_parent_that_cannot_be_reached_is_not_asked_all_the_time() -> None:
    driver = Driver(partition=1)
    driver.offer()
    driver.pass_time(0.1)
    for _ in range(100):
        while driver.passed_offers:
            driver.answer_offer()
        driver.pass_time(0.01)
    assert driver.partition.tree.passed_offers < 40


def test_a_visitor_meets_an_offer() -> None:
    driver = Driver()
    waiting = driver.offer(3)
    task = driver.visit(55)
    assert driver.visitors[task].value == session_of(3)
    (run,) = waiting.value
    assert (run.origin, run.sequence, run.attempt) == (5, 55, 1)
    assert driver.partition.own_tasks.open_tasks == 0


def test_a_visitor_waits_for_an_offer_for_so_long() -> None:
    driver = Driver()
    early, late = driver.visit(55), driver.visit(56)
    driver.pass_time(0.5)
    assert len(driver.take(3)) == 1
    assert driver.visitors[early].value == session_of(3)
    driver.pass_time(0.6)
    assert driver.visitors[late].value is None
    assert driver.take(3) == []


def test_visitors_leave_nothing_behind() -> None:
    driver = Driver()
    for number in range(100):
        driver.visit(number)
        driver.pass_time(1.1)
    assert not list(driver.partition.backlog.waiting())
    assert not driver.partition.backlog.lines[2].waiting


def test_a_visitor_of_an_offer_that_is_withdrawn_waits_on() -> None:
    driver = Driver()
    waiting = driver.offer(3, turn=False)
    asked = driver.ask("visit")
    visitor = QueueTask(55, 2, TERMS, b"", driver.now, READY, ready=driver.now)
    visitor.origin, visitor.visit = 5, (asked, 0)
    driver.visitors[visitor] = asked
    driver.partition.tree.visit(visitor, driver.now + 1.0, driver.now)
    driver.withdraw(waiting)
    assert not asked.answered
    assert len(driver.take(4)) == 1
    assert asked.value == session_of(4)


def test_a_visitor_goes_further_up_and_hears_what_became_of_it() -> None:
    driver = Driver(partition=1)
    taken, unwanted = driver.visit(55), driver.visit(56)
    driver.pass_time(0.1)
    assert driver.passed_tasks == [taken, unwanted]
    assert not driver.partition.idle, "the child would send them again"
    driver.partition.tree.task_answered(taken, session_of(8), "worker 8", driver.now)
    driver.pass_time(2.0)
    driver.partition.tree.task_answered(unwanted, b"", "", driver.now)
    driver.turn()
    assert driver.visitors[taken].value == session_of(8)
    assert driver.visitors[unwanted].value is None
    assert driver.partition.tree.tasks_away == 0
    assert driver.partition.idle


def test_a_worker_that_is_faster_than_the_parents_word() -> None:
    driver = Driver(partition=1)
    driver.add(3, terms=Terms(retries=3))
    driver.pass_time(0.1)
    done, failed, returned = driver.passed_tasks
    for task, how in ((done, DONE), (failed, FAILED), (returned, RETURNED)):
        finished = driver.finish(Run(task.sequence, 1, session_of(8)), how=how)
        assert (finished.late, finished.refused) == ([], [])
    for _ in range(3):
        driver.answer_task(8)
    assert driver.partition.own_tasks.leases == {}
    assert driver.partition.own_tasks.open_tasks == 2


def test_whoever_waits_for_an_answer_is_named_when_the_partition_is_given_up() -> None:
    driver = Driver()
    partition = driver.partition
    for slots in (1, 2):
        offer = WaitingOffer((f"offer {slots}", 0), session_of(slots), "w", slots, driver.now)
        partition.matcher.offer(offer, driver.now + 60, driver.now)
    driver.add(1, turn=False)  # one offer has all it wanted, and has not heard of it
    given = Run(partition.own_tasks.first_sequence, 1, session_of(1))
    running = [(given.sequence, 1, driver.proof_of(given))]
    partition.attempts.heartbeat(session_of(1), "w", running, "beat", driver.now + 5, driver.now)
    for number in range(4):
        visitor = QueueTask(number, 2, TERMS, b"", driver.now, READY, ready=driver.now)
        visitor.origin, visitor.visit = 5, (f"visit {number}", 0)
        partition.tree.visit(visitor, driver.now + 1.0, driver.now)
    partition.results.wait_for(partition.own_tasks.first_sequence, "await", driver.now)
    tokens, tickets = partition.leave()
    wanted = {"offer 1", "offer 2", "beat", "await", *(f"visit {number}" for number in range(4))}
    assert set(tokens) == wanted
    assert len(tokens) == len(wanted)
    assert len(tickets) == 1


def test_a_visitor_that_is_lost_leaves_an_own_task_of_the_same_number_alone() -> None:
    """Each partition counts for itself, so a child's task may have the number of one of ours."""
    driver = Driver(partition=1)
    (sequence,) = driver.add().sequences
    driver.pass_time(0.1)
    visitor = driver.visit(sequence, seconds=5.0)
    driver.pass_time(0.1)
    (ours,) = [task for task in driver.passed_tasks if task is not visitor]
    assert visitor in driver.passed_tasks
    driver.partition.tree.task_lost(visitor, driver.now)
    driver.turn()
    driver.offer()
    assert driver.recalled_tasks == [ours]


def test_a_visitor_that_is_lost_further_up_is_not_called_unwanted() -> None:
    """Its owner would give it to somebody else, while whoever got it further up runs it."""
    driver = Driver(partition=1)
    task = driver.visit(55, seconds=5.0)
    driver.pass_time(0.5)
    assert driver.lose_task() is task
    assert driver.visitors[task].value == "lost"


def test_a_visitor_expires_at_the_parent_as_it_would_at_home() -> None:
    driver = Driver()
    task = driver.visit(55, seconds=5.0)
    task.expires = driver.now + 1.0
    driver.pass_time(2.0)
    assert driver.take() == []
    assert driver.visitors[task].value is None
    assert not driver.partition.backlog.ready


def test_a_parent_that_cannot_be_reached_is_left_alone_for_a_moment() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=1, task_wait_seconds=0.0))
    driver.add()
    driver.pass_time(0.01)
    driver.partition.tree.parent_away(driver.now)
    task = driver.answer_task(None)
    assert not driver.passed_tasks
    driver.pass_time(0.02)
    assert not driver.passed_tasks
    driver.pass_time(0.04)
    assert driver.passed_tasks == [task]


def test_a_task_that_the_parent_may_have_given_out_is_not_refused_by_a_store_that_fails() -> None:
    """Who hears that nothing was done must not find it done."""
    driver = Driver(partition=1)
    driver.auto_commit = False
    first = driver.add()
    assert len(driver.passed_tasks) == 1
    driver.fail_commit()
    driver.add()
    assert not first.answered
    driver.answer_task("worker")
    driver.finish(driver.given[-1])
    assert first.safe


def test_an_offer_at_home_calls_those_back_that_went_to_the_parent_and_they_go_first() -> None:
    """Otherwise a backlog's first tasks could be overtaken for as long as there is one."""
    driver = Driver(partition=1, forwarding=Forwarding(tasks=2, task_wait_seconds=0.0))
    sequences = list(driver.add(5).sequences)
    driver.pass_time(0.001)
    assert [task.sequence for task in driver.passed_tasks] == sequences[:2]
    served = []
    for number in range(5):
        asked = driver.offer(f"worker {number}")
        while driver.recalled_tasks:
            assert not asked.answered
            driver.recalled_tasks.pop(0)
            driver.answer_task(None)
        (run,) = asked.value
        served.append(run.sequence)
    assert served == sequences


def test_a_parent_that_does_not_answer_a_recall_holds_nobody_up() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=2, task_wait_seconds=0.0))
    sequences = list(driver.add(5).sequences)
    driver.pass_time(0.001)
    asked = driver.offer()
    assert len(driver.recalled_tasks) == 2
    driver.pass_time(0.03)
    (run,) = asked.value
    assert run.sequence == sequences[2]


def test_where_offers_come_tasks_stay_at_home_for_a_moment() -> None:
    driver = Driver(partition=1, forwarding=Forwarding(tasks=2, task_wait_seconds=0.0))
    driver.add(5)
    driver.pass_time(0.001)
    driver.offer()
    driver.answer_task(None)
    driver.answer_task(None)
    assert not driver.passed_tasks
    driver.pass_time(0.03)
    assert len(driver.passed_tasks) == 2


def test_a_visitor_that_is_called_back_goes_home_or_is_taken() -> None:
    driver = Driver()
    here = driver.visit(55)
    driver.partition.tree.visit_recalled(here)
    driver.turn()
    assert driver.visitors[here].value is None
    driver = Driver(partition=1)
    above = driver.visit(56, seconds=5.0)
    driver.pass_time(0.1)
    driver.partition.tree.visit_recalled(above)
    driver.turn()
    assert driver.recalled_tasks == [above]
    assert not driver.visitors[above].answered
    driver.answer_task(8)
    assert driver.visitors[above].value == session_of(8)


def test_waiting_for_a_recall_that_is_not_answered_costs_no_looks() -> None:
    forwarding = Forwarding(tasks=2, task_wait_seconds=0.0)
    driver = Driver(partition=1, forwarding=forwarding, rate_per_second=1_000.0)
    driver.add(5)
    driver.pass_time(0.001)
    driver.offer()
    assert driver.partition.look(driver.now) > driver.now
    driver.pass_time(1.0)
    assert driver.partition.look(driver.now) > driver.now


def test_a_task_that_is_given_back_calls_those_home_that_went_to_the_parent_since() -> None:
    """Otherwise the parent's next offer takes those first."""
    driver = Driver(partition=1, forwarding=Forwarding(tasks=2, task_wait_seconds=0.0))
    first, second, third = driver.add(3).sequences
    driver.pass_time(0.001)
    driver.answer_task("worker")
    assert [task.sequence for task in driver.passed_tasks] == [second, third]
    driver.finish(driver.given[-1], how=RETURNED)
    assert [task.sequence for task in driver.recalled_tasks] == [second, third]
    # Nobody goes up before all are home, so that they go up in their order.
    driver.answer_task(None)
    assert [task.sequence for task in driver.passed_tasks] == [third]
    driver.answer_task(None)
    assert [task.sequence for task in driver.passed_tasks] == [first, second]
    driver.answer_task("worker")
    assert [task.sequence for task in driver.passed_tasks] == [second, third]


def test_tasks_stay_at_home_while_offers_come_but_not_for_long() -> None:
    """Where they do not come tasks go to the parent soon, so that workers elsewhere get them."""
    driver = Driver(partition=1, forwarding=Forwarding(tasks=1, task_wait_seconds=0.0))
    driver.add(40)
    driver.pass_time(0.001)
    driver.offer("a")
    driver.answer_task(None)
    assert not driver.passed_tasks
    driver.pass_time(0.0025)
    assert len(driver.passed_tasks) == 1
    driver.offer("b")
    driver.answer_task(None)
    began = driver.now
    for number in range(30):
        driver.pass_time(0.001)
        if driver.passed_tasks:
            break
        driver.offer(f"worker {number}")
    assert 0.015 < driver.now - began <= 0.022
