"""A link by hand: turns, gathered writes, a peer that does not read, and the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import FrameTooLarge, MaitredError, ProtocolViolation
from maitred.protocol.frames import (
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    Opcode,
    encode_frame,
)
from maitred.protocol.refusals import decode_error, encode_error
from maitred.wire.link import GATHERED_BYTES, Link
from tests.wire.by_hand import HandLoop, HandTransport

TURN = 4
LIMIT = 2**20


class Echoing(Link):
    """Says everything back, and writes down what it was given."""

    def __init__(self, loop: HandLoop, turn_frames: int = TURN) -> None:
        super().__init__(loop.as_loop, FrameDecoder(REQUEST, LIMIT), RESPONSE, turn_frames)
        self.portions: list[list[Frame]] = []
        self.refused: list[tuple[MaitredError, int]] = []

    def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
        self.portions.append(frames)
        for frame in frames:
            self.send(*frame)

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:
        self.refused.append((problem, stream))
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
        self.finish()

    @property
    def frames(self) -> list[Frame]:
        return [frame for portion in self.portions for frame in portion]


def made(
    loop: HandLoop, *, turn_frames: int = TURN, can_write_eof: bool = True
) -> tuple[Echoing, HandTransport]:
    link = Echoing(loop, turn_frames)
    transport = HandTransport(can_write_eof=can_write_eof)
    link.connection_made(transport)
    return link, transport


def some(count: int, size: int = 3) -> list[Frame]:
    return [Frame(0, number % 32_768, Opcode.ECHO, bytes(size)) for number in range(count)]


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(REQUEST, *frame) for frame in frames)


def incomplete_since(link: Link) -> float | None:
    """A function, for the type checker: what it has seen once may be something else later."""
    return link.partial_since


# Turns


def test_a_second_link_gets_its_turn_while_the_first_has_thousands_of_frames() -> None:
    loop = HandLoop()
    busy, _ = made(loop)
    modest, answered = made(loop)
    busy.data_received(encoded(some(5000)))
    assert len(busy.frames) == TURN
    modest.data_received(encoded(some(1)))
    assert answered.take(RESPONSE) == some(1)
    for turns in range(2, 20):
        loop.turn()
        assert len(busy.frames) == turns * TURN
    loop.settle()
    assert busy.frames == some(5000)
    assert {len(portion) for portion in busy.portions} == {TURN}


def test_two_busy_links_are_served_in_turns() -> None:
    loop = HandLoop()
    first, _ = made(loop)
    second, _ = made(loop)
    first.data_received(encoded(some(40)))
    second.data_received(encoded(some(40)))
    for _ in range(8):
        loop.turn()
        assert abs(len(first.frames) - len(second.frames)) <= TURN
    loop.settle()
    assert first.frames == second.frames == some(40)


def test_nothing_is_read_while_frames_wait_for_their_turn() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(3 * TURN)))
    assert not transport.is_reading()
    loop.turn()
    assert not transport.is_reading()
    loop.turn()
    assert transport.is_reading()
    assert link.frames == some(3 * TURN)


def test_a_whole_turn_and_no_more_waits_for_nothing() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(TURN)))
    assert transport.is_reading()
    assert not loop.ready
    assert link.frames == some(TURN)


def test_what_a_transport_delivers_although_paused_waits_behind() -> None:
    """TLS has sometimes more to give than the socket."""
    loop = HandLoop()
    link, _ = made(loop)
    link.data_received(encoded(some(2 * TURN)))
    link.data_received(encoded(some(3)))
    assert link.frames == some(TURN)
    loop.settle()
    assert link.frames == some(2 * TURN) + some(3)


def test_rubbish_is_refused_after_all_frames_before_it() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(2 * TURN + 1)) + b"rubbish and more of it")
    while not link.refused:
        assert link.frames == some(len(link.frames))
        loop.turn()
    assert link.frames == some(2 * TURN + 1)
    *answers, last = transport.take(RESPONSE)
    assert answers == some(2 * TURN + 1)
    assert decode_error(last.body).code == "unsupported-version"
    assert transport.calls == ["write_eof"]


def test_a_frame_too_large_is_refused_on_its_stream() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    link.decoder.max_body_bytes = 10
    link.data_received(encode_frame(REQUEST, 0, 77, 5, bytes(11)))
    ((problem, stream),) = link.refused
    assert isinstance(problem, FrameTooLarge)
    assert stream == 77


# Writes


def test_the_answers_of_a_turn_are_one_write() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(3 * TURN)))
    loop.settle()
    assert len(transport.writes) == 3
    assert transport.take(RESPONSE) == some(3 * TURN)
    assert not loop.ready


def test_what_is_written_elsewhere_in_a_turn_is_one_write_at_its_end() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    for frame in some(10):
        link.send(*frame)
    assert not transport.writes
    assert link.unsent_bytes == 10 * (HEADER_BYTES + 3) + transport.get_write_buffer_size()
    loop.turn()
    assert len(transport.writes) == 1
    assert transport.take(RESPONSE) == some(10)
    assert link.unsent_bytes == transport.get_write_buffer_size()
    link.send(*some(1)[0])
    loop.turn()
    assert transport.take(RESPONSE) == some(1)


def test_what_is_written_before_and_within_a_turn_keeps_its_order() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    early = Frame(0, 900, Opcode.ECHO, b"early")
    link.send(*early)
    link.data_received(encoded(some(2)))
    late = Frame(0, 901, Opcode.ECHO, b"late")
    link.send(*late)
    loop.settle()
    assert transport.take(RESPONSE) == [early, *some(2), late]


def test_much_is_written_at_once() -> None:
    loop = HandLoop()
    link, transport = made(loop, turn_frames=100)
    large = some(10, GATHERED_BYTES // 4)
    link.data_received(encoded(large))
    assert len(transport.writes) == 3
    assert all(len(write) < 2 * GATHERED_BYTES for write in transport.writes)
    assert transport.take(RESPONSE) == large


def test_a_single_frame_is_handed_over_as_it_is() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    frame = encode_frame(RESPONSE, 0, 1, 2, b"body")
    link.write(frame)
    loop.turn()
    assert transport.writes == [frame]


# A peer that does not read


def test_nothing_is_served_while_the_peer_does_not_read() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.pause_writing()
    since = link.write_paused_since
    assert since == loop.now
    link.data_received(encoded(some(2)))
    assert not link.frames
    assert not transport.is_reading()
    link.resume_writing()
    assert link.write_paused_since is None
    assert transport.is_reading()
    assert transport.take(RESPONSE) == some(2)


def test_a_peer_that_stops_reading_in_the_middle_of_turns() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(4 * TURN)))
    loop.turn()
    link.pause_writing()
    loop.settle()
    assert len(link.frames) == 2 * TURN
    assert not transport.is_reading()
    link.resume_writing()
    loop.settle()
    assert link.frames == some(4 * TURN)
    assert transport.is_reading()


def test_reading_stays_paused_if_the_turn_itself_filled_the_buffer() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(TURN + 1, GATHERED_BYTES)))
    assert not transport.is_reading()
    original = transport.write

    def full(data: bytes) -> None:
        original(data)
        link.pause_writing()

    transport.write = full  # type: ignore[method-assign, assignment]
    loop.settle()
    assert len(link.frames) == TURN + 1
    assert not transport.is_reading()
    link.resume_writing()
    assert transport.is_reading()


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 120))
def test_nothing_is_lost_or_reordered(seed: int, turn_frames: int, count: int) -> None:
    chance = random.Random(seed)
    loop = HandLoop()
    link, transport = made(loop, turn_frames=turn_frames)
    sent = [
        Frame(0, at, Opcode.ECHO, chance.randbytes(chance.randrange(30))) for at in range(count)
    ]
    data = encoded(sent)
    paused = False
    while data or loop.ready or paused:
        action = chance.randrange(4)
        if action == 0 and transport.is_reading() and data:
            size = chance.randrange(1, 80)
            link.data_received(data[:size])
            data = data[size:]
        elif action == 1:
            loop.turn()
        elif action == 2 and not paused:
            paused = True
            link.pause_writing()
        elif action == 3 and paused:
            paused = False
            link.resume_writing()
    assert link.frames == sent
    assert transport.take(RESPONSE) == sent
    assert transport.is_reading()
    assert all(len(portion) <= turn_frames for portion in link.portions)


# Moments that somebody looks at


def test_when_something_arrived() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    assert link.arrived_at == 1000
    loop.now = 1007
    link.data_received(b"\x04")
    assert link.arrived_at == 1007


def test_when_the_first_byte_of_an_incomplete_frame_arrived() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    frame = encoded(some(1))
    link.data_received(frame[:1])
    loop.now += 5
    link.data_received(frame[1:-1])
    assert incomplete_since(link) == 1000
    link.data_received(frame[-1:])
    assert incomplete_since(link) is None
    loop.now += 5
    link.data_received(frame + frame[:3])
    assert incomplete_since(link) == 1010


def test_frames_that_wait_for_a_turn_are_not_incomplete() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    link.data_received(encoded(some(2 * TURN)))
    assert incomplete_since(link) is None
    loop.settle()
    assert incomplete_since(link) is None


def test_a_frame_that_completes_while_the_peer_does_not_read_is_not_called_slow() -> None:
    """It waits for us, and the time that takes is not the peer's."""
    loop = HandLoop()
    link, _ = made(loop)
    frame = encoded(some(1))
    link.data_received(frame[:3])
    link.pause_writing()
    loop.now += 5
    link.data_received(frame[3:])
    assert incomplete_since(link) is None
    link.resume_writing()
    assert link.frames == some(1)
    assert incomplete_since(link) is None


def test_a_frame_still_incomplete_when_the_peer_reads_again_has_its_time_from_then() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    frame = encoded(some(1))
    link.data_received(frame[:3])
    link.pause_writing()
    loop.now += 5
    link.data_received(frame[3:5])
    link.resume_writing()
    assert incomplete_since(link) == 1005


# The end


def test_the_last_words_are_written_and_the_peer_closes() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.send(*some(1)[0])
    loop.now += 3
    link.finish()
    assert transport.take(RESPONSE) == some(1)
    assert transport.calls == ["write_eof"]
    assert link.closing
    assert link.closing_since == 1003
    loop.now += 3
    link.finish()
    assert transport.calls == ["write_eof"]
    assert link.closing_since == 1003
    loop.settle()


def test_without_half_closing_the_transport_is_closed() -> None:
    loop = HandLoop()
    link, transport = made(loop, can_write_eof=False)
    link.send(*some(1)[0])
    link.finish()
    assert transport.calls == ["close"]
    assert transport.take(RESPONSE) == some(1)


def test_a_link_that_is_ending_reads_so_that_the_peer_is_not_reset() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.data_received(encoded(some(2 * TURN)))
    assert not transport.is_reading()
    link.finish()
    assert transport.is_reading()
    loop.settle()
    link.data_received(encoded(some(3)))
    assert link.frames == some(TURN)


@pytest.mark.parametrize("size", [1, GATHERED_BYTES])
def test_nothing_is_written_after_the_last_words(size: int) -> None:
    """A transport raises for it, out of a callback that nobody catches."""
    loop = HandLoop()
    link, transport = made(loop)
    link.finish()
    link.send(0, 1, Opcode.EVENT, bytes(size))
    loop.settle()
    assert not transport.writes
    assert link.unsent_bytes == transport.get_write_buffer_size()


def test_a_peer_that_reads_again_wakes_nothing_after_the_end() -> None:
    loop = HandLoop()
    link, _ = made(loop)
    link.pause_writing()
    link.data_received(encoded(some(2)))
    link.finish()
    link.resume_writing()
    assert not link.frames


def test_abort_drops_what_has_gathered() -> None:
    loop = HandLoop()
    link, transport = made(loop)
    link.send(*some(1)[0])
    link.abort()
    loop.settle()
    assert not transport.writes
    assert transport.calls == ["abort"]
    assert link.closing
    assert link.unsent_bytes == transport.get_write_buffer_size()
    link.data_received(encoded(some(1)))
    assert not link.frames


def test_those_who_inherit_have_to_say_what_frames_mean() -> None:
    loop = HandLoop()
    link = Link(loop.as_loop, FrameDecoder(REQUEST, LIMIT), RESPONSE, TURN)
    with pytest.raises(NotImplementedError):
        link.frames_received([], 0.0)
    with pytest.raises(NotImplementedError):
        link.frame_refused(ProtocolViolation("x"), 0)
