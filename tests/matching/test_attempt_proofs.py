"""Proofs of attempts: any owner verifies them, and each is good for one thing only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.attempt_proofs import AttemptProofs, holder_of, session_of, user_of
from maitred.matching.proofs import PROOF_BYTES
from maitred.matching.records import PartitionKey, Terms
from tests.matching.driver import DONE, FAILED, SIGNING_KEY, Driver, Run
from tests.matching.driver import session_of as named

NAMES = st.sampled_from(["a", "b", "ab", "a/b", ""])
KEYS = st.builds(PartitionKey, NAMES, NAMES, st.integers(1, 2), st.integers(0, 3))
NUMBERS = st.sampled_from([0, 1, 2, 255, 256, 2**32, 2**32 + 1, 2**63 - 1])
USERS = st.text(st.characters(), max_size=3)
SESSIONS = st.binary(min_size=16, max_size=16)
CLAIMS = st.tuples(KEYS, NUMBERS, NUMBERS, SESSIONS, USERS)


@given(CLAIMS, CLAIMS)
def test_a_proof_is_good_for_what_it_was_issued_for_and_for_nothing_else(
    first: tuple[PartitionKey, int, int, bytes, str],
    second: tuple[PartitionKey, int, int, bytes, str],
) -> None:
    key, sequence, attempt, session, user = first
    holder = holder_of(session, user)
    proof = AttemptProofs(SIGNING_KEY, key).issue(sequence, attempt, holder)
    assert len(proof) == PROOF_BYTES
    assert (session_of(holder), user_of(holder)) == (session, user)
    key, sequence, attempt, session, user = second
    verified = AttemptProofs(SIGNING_KEY, key).verify(
        sequence, attempt, holder_of(session, user), proof
    )
    assert verified == (first == second)
    other_store = AttemptProofs(bytes(32), first[0])
    assert not other_store.verify(*first[1:3], holder, proof)


@given(KEYS, st.integers(0, 3), NUMBERS, NUMBERS, SESSIONS)
def test_a_parent_proves_what_the_owner_of_the_task_verifies(
    key: PartitionKey, origin: int, sequence: int, attempt: int, holder: bytes
) -> None:
    parent = AttemptProofs(SIGNING_KEY, key)
    owner = AttemptProofs(SIGNING_KEY, key._replace(partition=origin))
    for _ in range(2):  # the second time its signer is remembered
        proof = parent.issue_for_visitor(origin, sequence, attempt, holder)
        assert owner.verify(sequence, attempt, holder, proof)
        assert parent.verify(sequence, attempt, holder, proof) == (key.partition == origin)


def test_a_failed_attempt_is_not_done_afterwards() -> None:
    driver = Driver()
    driver.add(terms=Terms(retries=3, backoff_first=1.0, backoff_longest=1.0))
    run = driver.take_one()
    assert driver.finish(run, how=FAILED).late == []
    for how in (DONE, FAILED):
        assert driver.finish(run, how=how).late == [run.sequence]
    driver.pass_time(1.0)
    assert driver.finish(run).late == [run.sequence]
    again = driver.take_one()
    assert driver.finish(again).late == []


def test_an_end_does_not_count_when_another_worker_has_the_same_attempt() -> None:
    """As after a crash, when the first worker was not heard of in time."""
    driver = Driver(recovery_seconds=3.0)
    driver.add()
    driver.commit()
    first = driver.take_one(1)
    driver.crash()
    driver.pass_time(4.0)
    second = driver.take_one(2)
    assert (first.sequence, first.attempt) == (second.sequence, second.attempt)
    assert driver.finish(first).late == [first.sequence]
    assert driver.finish(second).late == []


def test_what_was_refused_is_counted_and_told_once_a_message() -> None:
    driver = Driver()
    sequences = driver.add(3).sequences
    forged = [Run(number, 1, named("thief"), proof=bytes(PROOF_BYTES)) for number in sequences]
    finished = driver.finish(*forged)
    assert (finished.refused, finished.late, finished.safe) == (sequences, [], True)
    driver.beat("thief", forged)
    assert driver.partition.attempts.unproven == 6
    told = [(one.holder, one.message, one.attempts) for one in driver.unproven]
    assert told == [(named("thief"), "FINISH", 3), (named("thief"), "HEARTBEAT", 3)]
    assert driver.partition.worker_sightings.workers == {}
