"""A caller by hand: each receiver is told exactly one thing, exactly once, and streams are safe."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import (
    Draining,
    ProtocolViolation,
    TooManyInFlight,
    Unavailable,
    UnsupportedVersion,
)
from maitred.protocol.frames import (
    EVENT_STREAM,
    REQUEST,
    RESPONSE,
    STREAMS_MAX,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.refusals import encode_error
from maitred.wire.alarm import TIMER_SLACK_SECONDS
from maitred.wire.caller import TURN_FRAMES, Caller, error_of
from tests.wire.by_hand import HandLoop, HandTransport

LIMIT = 2**16
MOST = 5


class Noting(Caller):
    """Writes down what comes by itself."""

    def __init__(self, loop: HandLoop, most: int) -> None:
        super().__init__(loop.as_loop, LIMIT, most)
        self.events: list[Frame] = []
        self.ends: list[Exception | None] = []

    def pushed(self, frame: Frame) -> None:
        self.events.append(frame)

    def ended(self, problem: Exception | None) -> None:
        assert not self.pending, "those who wait are told first"
        self.ends.append(problem)


class Waiting:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def answered(self, frame: Frame) -> None:
        self.told.append(frame)

    def expired(self) -> None:
        self.told.append("expired")

    def lost(self, problem: Exception | None) -> None:
        self.told.append(("lost", problem))


class Desk:
    """A caller, and the node at the other end of it."""

    def __init__(self, most: int = MOST) -> None:
        self.loop = HandLoop()
        self.caller = Noting(self.loop, most)
        self.transport = HandTransport()
        self.caller.connection_made(self.transport)

    def ask(self, deadline: float = inf, receiver: Waiting | None = None) -> tuple[int, Waiting]:
        receiver = receiver or Waiting()
        return self.caller.ask(Opcode.ECHO, b"question", receiver, deadline), receiver

    def answer(self, *streams: int) -> None:
        self.caller.data_received(
            b"".join(encode_frame(RESPONSE, 0, stream, 0xC0, b"answer") for stream in streams)
        )

    def sent(self) -> list[Frame]:
        self.loop.settle()
        return self.transport.take(REQUEST)


def answer_on(stream: int) -> Frame:
    return Frame(0, stream, 0xC0, b"answer")


def cancel_on(stream: int) -> Frame:
    return Frame(0, stream, Opcode.CANCEL, b"")


# Pairing


def test_answers_find_their_receivers_in_any_order() -> None:
    desk = Desk()
    asked = dict(desk.ask() for _ in range(MOST))
    assert [frame.stream for frame in desk.sent()] == list(asked)
    desk.answer(3, 0)
    desk.answer(4)
    desk.answer(1, 2)
    assert {stream: waiting.told for stream, waiting in asked.items()} == {
        stream: [answer_on(stream)] for stream in asked
    }
    assert desk.caller.in_flight == 0


def test_a_request_is_sent_as_it_was_given() -> None:
    desk = Desk()
    stream = desk.caller.ask(Opcode.STATUS, b"body", Waiting(), inf, flags=2)
    assert desk.sent() == [Frame(2, stream, Opcode.STATUS, b"body")]


def test_an_answered_stream_is_used_again() -> None:
    desk = Desk(most=1)
    for _ in range(3):
        stream, waiting = desk.ask()
        desk.answer(stream)
        assert stream == 0
        assert waiting.told == [answer_on(0)]


def test_too_many_in_flight() -> None:
    desk = Desk()
    for _ in range(MOST):
        desk.ask()
    with pytest.raises(TooManyInFlight, match=str(MOST)):
        desk.ask()
    assert len(desk.sent()) == MOST
    desk.answer(2)
    assert desk.ask()[0] == 2
    with pytest.raises(TooManyInFlight):
        desk.ask()


def test_no_more_in_flight_than_there_are_streams() -> None:
    desk = Desk(most=10**6)
    assert desk.caller.most_in_flight == STREAMS_MAX
    streams = {desk.ask()[0] for _ in range(STREAMS_MAX)}
    assert streams == set(range(STREAMS_MAX))
    with pytest.raises(TooManyInFlight):
        desk.ask()


def test_a_receiver_may_ask_again_while_it_is_told() -> None:
    desk = Desk(most=1)

    class Insisting(Waiting):
        def answered(self, frame: Frame) -> None:
            super().answered(frame)
            if len(self.told) < 3:
                desk.ask(receiver=self)

    insisting = Insisting()
    desk.ask(receiver=insisting)
    for _ in range(3):
        assert len(desk.sent()) == 1
        desk.answer(0)
    assert insisting.told == [answer_on(0)] * 3
    assert desk.sent() == []


def test_many_answers_are_handed_out_in_turns() -> None:
    desk = Desk(most=3 * TURN_FRAMES)
    asked = dict(desk.ask() for _ in range(3 * TURN_FRAMES))
    desk.answer(*asked)
    assert sum(len(waiting.told) for waiting in asked.values()) == TURN_FRAMES
    desk.loop.settle()
    assert all(len(waiting.told) == 1 for waiting in asked.values())


def test_answers_are_read_while_the_node_does_not_read() -> None:
    """It does not because its answers are not taken: if nobody reads, both wait for ever."""
    desk = Desk()
    stream, waiting = desk.ask()
    desk.caller.pause_writing()
    desk.answer(stream)
    assert waiting.told == [answer_on(stream)]
    assert desk.transport.is_reading()
    desk.caller.resume_writing()
    desk.caller.data_received(encode_frame(RESPONSE, 0, EVENT_STREAM, Opcode.EVENT, b"")[:5])
    assert desk.transport.is_reading()


def test_events_are_nobodys_answer() -> None:
    desk = Desk()
    _, waiting = desk.ask()
    desk.answer(EVENT_STREAM)
    assert desk.caller.events == [answer_on(EVENT_STREAM)]
    assert waiting.told == []
    assert desk.caller.in_flight == 1


@pytest.mark.parametrize("stream", [1, 7, -2, 32_767])
def test_an_answer_that_nobody_asked_for_ends_the_link(stream: int) -> None:
    desk = Desk()
    _, waiting = desk.ask()
    desk.answer(stream, 0)
    ((what, problem),) = waiting.told
    assert what == "lost"
    assert isinstance(problem, ProtocolViolation)
    assert f"stream {stream}" in str(problem)
    assert desk.caller.ends == [problem]
    assert desk.transport.calls == ["abort"]


def test_an_answer_twice_ends_the_link() -> None:
    desk = Desk()
    _, first = desk.ask()
    _, second = desk.ask()
    desk.answer(0, 0, 1)
    assert first.told == [answer_on(0)]
    assert len(second.told) == 1
    assert desk.caller.closing


def test_rubbish_ends_the_link() -> None:
    desk = Desk()
    _, waiting = desk.ask()
    desk.caller.data_received(b"HTTP/1.1 400 Bad Request\r\n")
    ((_, problem),) = waiting.told
    assert isinstance(problem, UnsupportedVersion)
    assert desk.caller.ends == [problem]


# Deadlines


def test_a_deadline_expires_and_the_node_is_told_on_the_same_stream() -> None:
    desk = Desk()
    stream, waiting = desk.ask(deadline=1005)
    desk.sent()
    desk.loop.advance(1005 - 2 * TIMER_SLACK_SECONDS)
    assert waiting.told == []
    desk.loop.advance(1005)
    assert waiting.told == ["expired"]
    assert desk.sent() == [cancel_on(stream)]


def test_an_abandoned_stream_is_not_used_until_the_node_has_answered() -> None:
    desk = Desk(most=2)
    stream, waiting = desk.ask(deadline=1005)
    desk.loop.advance(1005)
    assert desk.caller.abandoned == desk.caller.in_flight == 1
    assert desk.ask()[0] != stream
    with pytest.raises(TooManyInFlight):
        desk.ask()
    desk.answer(stream)
    assert desk.caller.abandoned == 0
    assert desk.ask()[0] == stream
    assert waiting.told == ["expired"]


def test_the_earliest_deadline_has_the_only_timer() -> None:
    desk = Desk()
    for deadline in (1009, 1003, 1006, inf):
        desk.ask(deadline=deadline)
    assert [timer.moment for timer in desk.loop.set_timers] == [1003]
    desk.loop.advance(1003)
    assert [timer.moment for timer in desk.loop.set_timers] == [1006]
    desk.answer(2)
    desk.loop.advance(1006)
    assert [timer.moment for timer in desk.loop.set_timers] == [1009]
    desk.loop.advance(1009)
    assert not desk.loop.set_timers
    desk.ask(deadline=1020)
    assert [timer.moment for timer in desk.loop.set_timers] == [1020]


def test_an_answered_request_does_not_expire() -> None:
    desk = Desk()
    stream, waiting = desk.ask(deadline=1005)
    desk.answer(stream)
    desk.sent()
    desk.loop.advance(1010)
    assert waiting.told == [answer_on(stream)]
    assert desk.sent() == []


def test_a_timer_that_rings_a_little_early_is_not_set_again() -> None:
    desk = Desk()
    _, waiting = desk.ask(deadline=1005)
    (timer,) = desk.loop.set_timers
    desk.loop.now = 1005 - TIMER_SLACK_SECONDS / 2
    timer.callback()
    assert waiting.told == ["expired"]


def test_two_that_expire_together_when_the_first_ends_the_link() -> None:
    """A heartbeat that is not answered does that."""
    desk = Desk()
    problem = ConnectionError("silent")

    class Fatal(Waiting):
        def expired(self) -> None:
            super().expired()
            desk.caller.fail(problem)

    _, fatal = desk.ask(1005, Fatal())
    _, other = desk.ask(1005)
    desk.loop.advance(1005)
    assert fatal.told == ["expired"]
    assert other.told == [("lost", problem)]
    assert desk.caller.ends == [problem]


def test_two_that_expire_together_when_the_first_gives_the_second_up() -> None:
    desk = Desk()
    other = Waiting()

    class Selfish(Waiting):
        def expired(self) -> None:
            super().expired()
            assert desk.caller.give_up(1, other)

    desk.ask(1005, Selfish())
    desk.ask(1005, other)
    desk.sent()
    desk.loop.advance(1005)
    assert other.told == []
    assert desk.sent() == [cancel_on(0), cancel_on(1)]
    assert desk.caller.abandoned == 2
    desk.answer(0, 1)
    assert desk.caller.abandoned == 0


def test_a_receiver_may_ask_again_when_it_expires() -> None:
    desk = Desk()
    later = Waiting()

    class Insisting(Waiting):
        def expired(self) -> None:
            super().expired()
            desk.ask(1009, later)

    _, insisting = desk.ask(1005, Insisting())
    desk.loop.advance(1005)
    assert insisting.told == ["expired"]
    desk.loop.advance(1009)
    assert later.told == ["expired"]


def test_deadlines_hold_while_the_link_is_ending() -> None:
    """The peer may take as long as it likes to close; those who wait may not have to."""
    desk = Desk()
    _, first = desk.ask(1005)
    _, second = desk.ask(1007)
    desk.caller.finish()
    desk.loop.advance(1007)
    assert first.told == second.told == ["expired"]


# Giving up


def test_giving_up_tells_the_node_and_nobody_else() -> None:
    desk = Desk()
    stream, waiting = desk.ask(deadline=1005)
    desk.sent()
    assert desk.caller.give_up(stream, waiting)
    assert desk.sent() == [cancel_on(stream)]
    assert not desk.caller.give_up(stream, waiting)
    desk.loop.advance(1010)
    desk.answer(stream)
    assert waiting.told == []
    assert desk.sent() == []
    assert desk.caller.abandoned == desk.caller.in_flight == 0


def test_what_was_answered_cannot_be_given_up() -> None:
    desk = Desk(most=1)
    stream, waiting = desk.ask()
    desk.answer(stream)
    assert not desk.caller.give_up(stream, waiting)
    _, next_one = desk.ask()
    assert not desk.caller.give_up(stream, waiting), "another one has this stream now"
    desk.answer(stream)
    assert len(next_one.told) == 1


# The end


def test_a_lost_connection_tells_everybody_once() -> None:
    desk = Desk()
    asked = [desk.ask(deadline=1005)[1] for _ in range(3)]
    given_up = Waiting()
    desk.caller.give_up(desk.ask(receiver=given_up)[0], given_up)
    problem = ConnectionResetError("gone")
    desk.caller.connection_lost(problem)
    desk.caller.connection_lost(None)
    desk.loop.advance(2000)
    assert [waiting.told for waiting in asked] == [[("lost", problem)]] * 3
    assert given_up.told == []
    assert desk.caller.ends == [problem]
    assert not desk.loop.set_timers


def test_a_link_that_failed_is_lost_for_its_reason() -> None:
    desk = Desk()
    _, waiting = desk.ask()
    problem = Draining("enough")
    desk.caller.fail(problem)
    desk.caller.connection_lost(None)
    assert waiting.told == [("lost", problem)]
    assert desk.caller.ends == [problem]
    assert desk.transport.calls == ["abort"]


@pytest.mark.parametrize("end", ["finish", "abort"])
def test_nothing_can_be_asked_after_the_end(end: str) -> None:
    desk = Desk()
    getattr(desk.caller, end)()
    with pytest.raises(Unavailable):
        desk.ask()
    assert desk.caller.in_flight == 0


def test_a_receiver_that_is_told_of_the_loss_may_try_to_ask() -> None:
    desk = Desk()
    refused: list[Exception] = []

    class Insisting(Waiting):
        def lost(self, problem: Exception | None) -> None:
            super().lost(problem)
            with pytest.raises(Unavailable) as caught:
                desk.ask()
            refused.append(caught.value)

    desk.ask(receiver=Insisting())
    desk.ask(receiver=Insisting())
    desk.caller.connection_lost(None)
    assert len(refused) == 2


def test_the_error_in_a_frame() -> None:
    body = encode_error(Draining("Stopping.", remedy="Go."))
    problem = error_of(Frame(0, 1, Opcode.ERROR, body))
    assert isinstance(problem, Draining)
    assert problem.remedy == "Go."
    assert isinstance(error_of(Frame(0, 1, Opcode.ERROR, b"\0")), ProtocolViolation)


# Everything together


class Party:
    """Questions, answers, time, second thoughts and the end, in any order."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.desk = Desk(chance.randint(1, 6))
        self.asked: dict[Waiting, int] = {}
        self.given_up: set[Waiting] = set()
        self.open: set[int] = set()
        """Streams on which the node owes an answer."""
        self.cancelled: set[int] = set()
        self.over = False

    def look(self) -> None:
        """What the node sees."""
        for frame in self.desk.sent():
            if frame.opcode == Opcode.CANCEL:
                assert frame.stream in self.open, "cancelled what was answered and seen to be"
                assert frame.stream not in self.cancelled, "cancelled twice"
                self.cancelled.add(frame.stream)
            else:
                assert frame.stream not in self.open, "a stream was used again too early"
                self.open.add(frame.stream)

    def ask(self, seconds: float, receiver: Waiting) -> None:
        try:
            stream, _ = self.desk.ask(self.desk.loop.now + seconds, receiver)
        except TooManyInFlight:
            assert len(self.desk.caller.pending) == self.desk.caller.most_in_flight
        except Unavailable:
            assert self.over
        else:
            self.asked[receiver] = stream

    def question(self) -> None:
        mood = self.chance.choice(("calm", "calm", "insisting", "selfish", "fatal"))
        # Few moments, so that several deadlines are the same.
        self.ask(self.chance.choice((0, 1, 2, 3, inf)), Moody(self, mood))

    def answers(self) -> None:
        streams = self.chance.sample(sorted(self.open), self.chance.randint(0, len(self.open)))
        self.open.difference_update(streams)
        self.cancelled.difference_update(streams)
        self.desk.answer(*streams)

    def time_passes(self) -> None:
        self.desk.loop.advance(self.desk.loop.now + self.chance.choice((0, 0.5, 1, 2)))

    def second_thoughts(self) -> None:
        if self.asked:
            receiver = self.chance.choice(list(self.asked))
            known = not receiver.told and receiver not in self.given_up
            assert self.desk.caller.give_up(self.asked[receiver], receiver) == known
            if known:
                self.given_up.add(receiver)

    def step(self) -> None:
        self.chance.choice(
            (self.question, self.question, self.answers, self.time_passes, self.second_thoughts)
        )()
        if self.over:
            return
        self.look()
        caller = self.desk.caller
        assert caller.pending.keys() == self.open
        assert caller.abandoned == len(self.cancelled)
        waiting = [one for one in self.asked if not one.told and one not in self.given_up]
        assert len(waiting) == caller.in_flight - caller.abandoned
        assert caller.in_flight <= caller.most_in_flight

    def end(self) -> None:
        self.over = True
        self.desk.caller.connection_lost(None)
        assert not self.desk.caller.pending
        assert not self.desk.loop.set_timers
        assert len(self.desk.caller.ends) == 1
        for receiver in self.asked:
            assert len(receiver.told) == (receiver not in self.given_up)


class Moody(Waiting):
    """Some ask again when they are told something, some give others up, or the whole link, when
    their time is over."""

    def __init__(self, party: Party, mood: str) -> None:
        super().__init__()
        self.party = party
        self.mood = mood

    def answered(self, frame: Frame) -> None:
        super().answered(frame)
        self._again()

    def expired(self) -> None:
        super().expired()
        self._again()
        if self.mood == "selfish":
            self.party.second_thoughts()
        if self.mood == "fatal":
            self.party.over = True
            self.party.desk.caller.fail(ConnectionError("silent"))

    def lost(self, problem: Exception | None) -> None:
        super().lost(problem)
        self._again()

    def _again(self) -> None:
        if self.mood == "insisting":
            self.party.ask(1, Waiting())


@given(st.integers(0, 2**32))
def test_each_receiver_is_told_exactly_one_thing(seed: int) -> None:
    party = Party(random.Random(seed))
    for _ in range(60):
        party.step()
        if party.over:
            break
    party.end()
