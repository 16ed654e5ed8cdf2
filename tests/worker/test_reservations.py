"""Which reservations are good, whatever comes first."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maitred.errors import InvalidReservation, SlotTaken
from maitred.protocol.tasks import Reserved
from maitred.worker import reservations
from maitred.worker.early_queries import EarlyQueries
from maitred.worker.reservations import (
    OUTRANKED_SECONDS,
    REMEMBERED,
    Reservation,
    Reservations,
)
from tests.worker.test_early_queries import an_early_query

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def reservation(token: bytes, expires_at: float = 10.0, fetch_at: float = 5.0) -> Reservation[str]:
    return Reservation(Reserved(0, token, "ann", 2.0, 60.0, 1, 0), "queue", expires_at, fetch_at)


def a_book() -> Reservations[str]:
    return Reservations()


def test_the_word_first_then_the_query() -> None:
    book = a_book()
    book.add(reservation(A))
    found = book.use(A)
    assert found is not None
    assert found.where == "queue"
    assert book.use(A) is None
    assert isinstance(book.why_not(A), InvalidReservation)
    assert "used" in str(book.why_not(A))


def test_the_query_first_then_the_word() -> None:
    book = a_book()
    assert book.why_not(A) is None
    book.used_at_once(A)
    assert (book.known, book.is_over(A)) == ({}, True)
    assert "used" in str(book.why_not(A))


def test_what_is_given_back_before_the_word_of_it_comes() -> None:
    book = a_book()
    assert book.release(A) is None
    assert book.is_over(A)
    book.add(reservation(B))
    assert book.release(B) is not None
    assert "given back" in str(book.why_not(A))


def test_no_slot_for_it() -> None:
    book = a_book()
    book.refuse(A)
    assert isinstance(book.why_not(A), SlotTaken)


def test_time() -> None:
    book = a_book()
    assert book.next_at() is None
    book.add(reservation(A, 2.0, 1.0))
    assert book.next_at() == 1.0
    expired, to_fetch = book.due(1.0)
    assert (expired, [one.terms.token for one in to_fetch]) == ([], [A])
    assert book.due(1.5) == ([], [])
    assert book.next_at() == 2.0
    expired, to_fetch = book.due(2.0)
    assert ([one.terms.token for one in expired], to_fetch) == ([A], [])
    assert "expired" in str(book.why_not(A))
    assert book.next_at() is None


def test_what_is_remembered_is_bounded() -> None:
    book = a_book()
    for number in range(REMEMBERED + 10):
        book.release(number.to_bytes(16, "big"))
    assert not book.is_over((5).to_bytes(16, "big"))
    assert book.is_over((REMEMBERED).to_bytes(16, "big"))
    assert reservations.unknown().code == "invalid-reservation"


class Anything(RuleBasedStateMachine):
    """Each token is used once at most, and every slot that was taken is given back or used."""

    tokens = some.integers(0, 5).map(lambda number: number.to_bytes(16, "big"))

    def __init__(self) -> None:
        super().__init__()
        self.book = a_book()
        self.early = EarlyQueries(3, 30)
        self.now = 0.0
        self.slots = 0
        self.begun: list[bytes] = []
        self.told: set[bytes] = set()

    @rule(token=tokens, seconds=some.floats(0.1, 3))
    def the_word(self, token: bytes, seconds: float) -> None:
        if token in self.told:
            return  # a node makes each token once
        self.told.add(token)
        if self.book.is_over(token):
            return
        if self.early.take(token):
            self.book.used_at_once(token)
            self.begun.append(token)
        else:
            self.book.add(reservation(token, self.now + seconds, self.now))
            self.slots += 1

    @rule(token=tokens)
    def no_room(self, token: bytes) -> None:
        if token not in self.told:
            self.told.add(token)
            self.book.refuse(token)
            self.early.take(token)

    @rule(token=tokens, size=some.integers(0, 20))
    def a_query(self, token: bytes, size: int) -> None:
        if self.book.use(token) is not None:
            self.begun.append(token)
            self.slots -= 1
        elif self.book.why_not(token) is None:
            self.early.park(an_early_query(token, size, self.now + 0.5))

    @rule(token=tokens)
    def given_back(self, token: bytes) -> None:
        self.early.take(token)
        if self.book.release(token) is not None:
            self.slots -= 1

    def next_at(self) -> float:
        moments = (self.book.next_at(), self.early.next_at())
        return min((at for at in moments if at is not None), default=inf)

    @rule(seconds=some.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        following = self.next_at()
        expired, to_fetch = self.book.due(self.now)
        late = self.early.late(self.now)
        self.slots -= len(expired)
        anything = bool(expired or to_fetch or late)
        if following > self.now:
            assert not anything
        else:
            assert anything or self.next_at() > self.now
        assert self.book.due(self.now) == ([], [])
        assert self.early.late(self.now) == []

    @invariant()
    def holds(self) -> None:
        assert len(self.begun) == len(set(self.begun))
        assert self.slots == len(self.book.known)
        waiting = [one for each in self.early.waiting.values() for one in each]
        assert self.early.count == len(waiting) <= 3
        assert self.early.bytes == sum(len(one.message.payload) for one in waiting) <= 30
        assert all(self.early.waiting.values())
        assert not set(self.book.known) & set(self.early.waiting)


TestAnything = Anything.TestCase


@given(some.lists(some.integers(0, 3), max_size=30))
def test_one_query_at_most_for_each_token(shown: list[int]) -> None:
    book = a_book()
    for number in range(4):
        book.add(reservation(number.to_bytes(16, "big")))
    used = [number for number in shown if book.use(number.to_bytes(16, "big")) is not None]
    assert sorted(used) == sorted(set(shown))


def of_owner(token: bytes, range_id: int, partition: int = 0) -> Reserved:
    return Reserved(partition, token, "ann", 2.0, 60.0, 1, 0, range_id=range_id)


def test_rule_6_the_reservation_of_a_replaced_owner_is_refused() -> None:
    book = a_book()
    assert not book.is_outranked("queue", of_owner(A, 7), 1.0)
    assert book.is_outranked("queue", of_owner(B, 6), 2.0)
    assert not book.is_outranked("queue", of_owner(B, 7), 2.0)
    assert not book.is_outranked("queue", of_owner(B, 6, partition=1), 2.0)
    assert not book.is_outranked("other", of_owner(B, 6), 2.0)
    assert not book.is_outranked("queue", of_owner(B, 0), 2.0), "an older node says no range id"


def test_rule_6_a_restored_database_may_begin_with_lower_range_ids_again() -> None:
    book = a_book()
    assert not book.is_outranked("queue", of_owner(A, 7), 1.0)
    assert not book.is_outranked("queue", of_owner(B, 2), 1.0 + OUTRANKED_SECONDS)
    assert not book.is_outranked("queue", of_owner(B, 2), 2.0 + OUTRANKED_SECONDS)


def test_rule_6_a_lost_link_voids_what_came_over_it() -> None:
    book = a_book()
    link, other = object(), object()
    for token, over in ((A, link), (B, other), (C, None)):
        one = Reservation(of_owner(token, 7), "queue", 10.0, 5.0, over)
        book.add(one)
    (gone,) = book.void(link)
    assert (gone.terms.token, list(book.known)) == (A, [B, C])
    assert book.use(A) is None
    assert isinstance(book.why_not(A), SlotTaken)
    assert book.void(link) == []
    assert book.use(B) is not None, "its connection lives"
    assert book.void(other) == [], "its query has come"


def test_rule_6_a_reservation_of_an_earlier_owner_yields_its_slot_to_a_later_one() -> None:
    book = a_book()
    book.add(Reservation(of_owner(A, 6), "queue", 10.0, 5.0))
    assert book.yielding("queue", of_owner(B, 6)) is None
    assert book.yielding("queue", of_owner(B, 7, partition=1)) is None
    found = book.yielding("queue", of_owner(B, 7))
    assert found is not None
    assert found.terms.token == A
    assert isinstance(book.why_not(A), SlotTaken)
    assert book.yielding("queue", of_owner(B, 7)) is None
