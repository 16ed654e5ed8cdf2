"""Which reservations are good, whatever comes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maitred.errors import InvalidReservation, SlotTaken
from maitred.protocol.tasks import Reserved
from maitred.worker import reservations
from maitred.worker.reservations import REMEMBERED, Reservation, Reservations

A, B = b"a" * 16, b"b" * 16


def reservation(token: bytes, expires_at: float = 10.0, fetch_at: float = 5.0) -> Reservation[str]:
    return Reservation(Reserved(0, token, "ann", 2.0, 60.0, 1, 0), "queue", expires_at, fetch_at)


def a_book(most_early: int = 4, most_bytes: int = 100) -> Reservations[str, str]:
    return Reservations(most_early, most_bytes)


def test_the_word_first_then_the_query() -> None:
    book = a_book()
    assert book.add(reservation(A)) is None
    found = book.use(A)
    assert found is not None
    assert found.where == "queue"
    assert book.use(A) is None
    assert isinstance(book.why_not(A), InvalidReservation)
    assert "used" in str(book.why_not(A))


def test_the_query_first_then_the_word() -> None:
    book = a_book()
    assert book.why_not(A) is None
    assert book.park(A, "who", 3, 1.0)
    assert "same reservation" in str(book.why_not(A))
    assert not book.park(A, "another", 3, 1.0)
    early = book.add(reservation(A))
    assert early is not None
    assert early.who == "who"
    assert (book.early_bytes, book.known) == (0, {})
    assert "used" in str(book.why_not(A))


def test_what_is_given_back_before_the_word_of_it_comes() -> None:
    book = a_book()
    assert book.release(A) is None
    assert book.is_over(A)
    assert book.park(B, "who", 3, 1.0)
    assert book.release(B) is None
    assert not book.early
    assert book.add(reservation(b"c" * 16)) is None
    assert book.release(b"c" * 16) is not None
    assert "given back" in str(book.why_not(A))


def test_no_slot_for_it() -> None:
    book = a_book()
    assert book.refuse(A) is None
    assert isinstance(book.why_not(A), SlotTaken)
    assert book.park(B, "who", 3, 1.0)
    early = book.refuse(B)
    assert early is not None
    assert early.who == "who"


def test_time() -> None:
    book = a_book()
    assert book.next_at() is None
    book.add(reservation(A, 2.0, 1.0))
    book.park(B, "who", 3, 0.5)
    assert book.next_at() == 0.5
    first = book.due(0.5)
    assert [early.who for early in first.late] == ["who"]
    assert book.next_at() == 1.0
    second = book.due(1.0)
    assert [one.terms.token for one in second.to_fetch] == [A]
    assert not book.due(1.5).to_fetch
    third = book.due(2.0)
    assert [one.terms.token for one in third.expired] == [A]
    assert "too late" in str(book.why_not(A))
    assert book.next_at() is None


def test_a_query_waits_once_more_if_the_loop_was_blocked_when_its_time_was_over() -> None:
    book = a_book()
    assert book.park(A, "blocked", 1, 1.0)
    assert book.due(1.5).late == []  # the word may lie in a socket
    assert book.next_at() == 2.0
    assert book.due(1.9).late == []
    assert [early.who for early in book.due(2.5).late] == ["blocked"]  # once only
    assert book.park(A, "blocked", 1, 3.0)
    assert book.due(3.5).late == []
    early = book.add(reservation(A))
    assert early is not None
    assert early.who == "blocked"


def test_what_waits_and_what_is_remembered_is_bounded() -> None:
    book = a_book(2, 10)
    assert book.park(A, "1", 4, 1.0)
    assert not book.park(B, "2", 7, 1.0)
    assert book.park(B, "2", 6, 1.0)
    assert not book.park(b"c" * 16, "3", 0, 1.0)
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
        self.book: Reservations[str, bytes] = Reservations(3, 30)
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
        self.slots += 1
        if self.book.add(reservation(token, self.now + seconds, self.now)) is not None:
            self.begun.append(token)
            self.slots -= 1

    @rule(token=tokens)
    def no_room(self, token: bytes) -> None:
        if token not in self.told:
            self.told.add(token)
            self.book.refuse(token)

    @rule(token=tokens, size=some.integers(0, 20))
    def a_query(self, token: bytes, size: int) -> None:
        if self.book.use(token) is not None:
            self.begun.append(token)
            self.slots -= 1
        elif self.book.why_not(token) is None:
            self.book.park(token, token, size, self.now + 0.5)

    @rule(token=tokens)
    def given_back(self, token: bytes) -> None:
        if self.book.release(token) is not None:
            self.slots -= 1

    @rule(seconds=some.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        following = self.book.next_at()
        due = self.book.due(self.now)
        self.slots -= len(due.expired)
        anything = bool(due.expired or due.late or due.to_fetch)
        if following is None or following > self.now:
            assert not anything
        else:
            later = self.book.next_at()
            assert anything or (later is not None and later > self.now)
        again = self.book.due(self.now)
        assert [*again.expired, *again.late, *again.to_fetch] == []

    @invariant()
    def holds(self) -> None:
        assert len(self.begun) == len(set(self.begun))
        assert self.slots == len(self.book.known)
        assert self.book.early_bytes == sum(one.size for one in self.book.early.values())
        assert self.book.early_bytes <= 30
        assert len(self.book.early) <= 3
        assert not set(self.book.known) & set(self.book.early)


TestAnything = Anything.TestCase


@given(some.lists(some.integers(0, 3), max_size=30))
def test_one_query_at_most_for_each_token(shown: list[int]) -> None:
    book = a_book()
    for number in range(4):
        book.add(reservation(number.to_bytes(16, "big")))
    used = [number for number in shown if book.use(number.to_bytes(16, "big")) is not None]
    assert sorted(used) == sorted(set(shown))
