"""The decoder: however bytes come and frames are taken, the same frames, in bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import FrameTooLarge, ProtocolViolation, UnsupportedVersion
from maitred.protocol.frames import (
    HEADER,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    VERSION,
    Frame,
    FrameDecoder,
    Opcode,
    encode_frame,
)

LIMIT = 400
EVERYTHING = 10_000

bodies = st.binary(max_size=LIMIT)
frames = st.builds(
    Frame, st.integers(0, 255), st.integers(-(2**15), 2**15 - 1), st.integers(0, 255), bodies
)
versions = st.sampled_from((REQUEST, RESPONSE))


def encoded(version: int, sent: list[Frame]) -> bytes:
    return b"".join(encode_frame(version, *frame) for frame in sent)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(
    versions,
    st.lists(frames, max_size=12),
    st.lists(st.integers(0, 10_000), max_size=30),
    st.lists(st.integers(1, 5), min_size=1, max_size=10),
    st.booleans(),
)
def test_any_pieces_and_any_portions_give_the_same_frames(
    version: int, sent: list[Frame], cuts: list[int], portions: list[int], keep_up: bool
) -> None:
    decoder = FrameDecoder(version, LIMIT)
    taken: list[Frame] = []
    fed = 0
    turn = 0
    for piece in pieces(encoded(version, sent), cuts):
        decoder.feed(piece)
        fed += len(piece)
        # Either all that is there is taken, or one portion, and the rest waits for later.
        while portion := decoder.take(portions[turn % len(portions)]):
            assert len(portion) <= portions[turn % len(portions)]
            turn += 1
            taken += portion
            if not keep_up:
                break
        gone = len(encoded(version, taken))
        assert decoder.waiting_bytes == fed - gone
        if keep_up:
            assert decoder.waiting_bytes < HEADER_BYTES + LIMIT
    while portion := decoder.take(1):
        taken += portion
    assert taken == sent
    assert all(type(frame) is Frame and type(frame.body) is bytes for frame in taken)
    assert decoder.broken is None
    assert decoder.waiting_bytes == 0


def test_a_portion_is_full_before_more_is_looked_at() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(encoded(REQUEST, [Frame(0, 1, 5, b"")] * 3))
    assert len(decoder.take(2)) == 2
    assert decoder.waiting_bytes == HEADER_BYTES
    assert len(decoder.take(2)) == 1


def test_what_is_held_is_let_go_with_its_last_frame() -> None:
    size = 2**20
    frame = encode_frame(REQUEST, 0, 1, 5, bytes(size))
    decoder = FrameDecoder(REQUEST, size)
    tracemalloc.start()
    try:
        for at in range(0, len(frame), 4096):
            decoder.feed(frame[at : at + 4096])
            decoder.take(EVERYTHING)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < size // 16, "the decoder keeps what was taken"
    # The frame as it grows (with room to grow), a copy to cut from, and the body cut from it.
    assert most < 4 * size


def copied_bytes(frame: bytes, size: int) -> int:
    """The bytes that move while the frame comes in pieces, told by when the buffer is made anew."""
    decoder = FrameDecoder(REQUEST, len(frame))
    copied = 0
    seen: object = None
    taken: list[Frame] = []
    for at in range(0, len(frame), size):
        piece = frame[at : at + size]
        decoder.feed(piece)
        buffer = decoder._buffer
        copied += len(piece) if buffer is seen else len(buffer)
        seen = buffer
        taken += decoder.take(EVERYTHING)
        if decoder._buffer is not buffer:
            copied += len(buffer)
            seen = decoder._buffer
    assert len(taken) == 1
    return copied


def test_a_large_frame_in_small_pieces_is_not_copied_again_and_again() -> None:
    frame = encode_frame(REQUEST, 0, 1, 5, bytes(2**20))
    # Once into the buffer, once out of it; a copy for each of 16,384 pieces would be 8,192 times.
    assert copied_bytes(frame, 64) < 3 * len(frame)


def test_a_frame_behind_others_is_not_copied_again_and_again_either() -> None:
    """The rest of a read becomes a buffer that grows, wherever in the read it started."""
    first = encode_frame(REQUEST, 0, 1, 5, b"")
    large = encode_frame(REQUEST, 0, 2, 5, bytes(2**18))
    decoder = FrameDecoder(REQUEST, 2**18)
    decoder.feed(first + large[:100])
    assert len(decoder.take(EVERYTHING)) == 1
    decoder.feed(large[100:200])
    buffer = decoder._buffer
    for at in range(200, len(large), 100):
        decoder.feed(large[at : at + 100])
        assert decoder._buffer is buffer
        taken = decoder.take(EVERYTHING)
        if at + 100 < len(large):
            assert not taken
        else:
            assert [frame.stream for frame in taken] == [2]


@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_a_body_up_to_the_limit_is_taken(size: int) -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(encode_frame(REQUEST, 0, 7, 5, bytes(size)))
    assert decoder.take(1) == [Frame(0, 7, 5, bytes(size))]
    assert decoder.broken is None


def test_a_body_past_the_limit_is_refused_by_its_header() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(HEADER.pack(REQUEST, 0, 7, 5, LIMIT + 1))
    assert decoder.take(1) == []
    assert isinstance(decoder.broken, FrameTooLarge)
    assert f"{LIMIT + 1:,}" in decoder.broken.sentence
    assert f"{LIMIT:,}" in decoder.broken.sentence
    assert decoder.broken.remedy
    assert decoder.broken_stream == 7


def test_the_limit_may_change_between_frames() -> None:
    """Strangers get little memory, and more once they are known."""
    decoder = FrameDecoder(REQUEST, 1)
    decoder.feed(encoded(REQUEST, [Frame(0, 1, 1, b""), Frame(0, 2, 5, b"12")]))
    assert len(decoder.take(1)) == 1
    decoder.max_body_bytes = 2
    assert len(decoder.take(1)) == 1
    assert decoder.broken is None


def test_a_body_cannot_have_less_than_no_bytes() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(HEADER.pack(REQUEST, 0, 7, 5, -1))
    assert decoder.take(1) == []
    assert type(decoder.broken) is ProtocolViolation
    assert "-1" in decoder.broken.sentence
    assert decoder.broken_stream == 7


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (encode_frame(0x03, 0, 9, 5, b""), "(3)"),
        (encode_frame(0x05, 0, 9, 5, b""), "(5)"),
        (b"GET / HTTP/1.1\r\n", f"({ord('G')})"),
        (bytes.fromhex("16030102000100"), "TLS"),
        (b"\0", "(0)"),
    ],
)
@pytest.mark.parametrize("shown", [1, None])
def test_another_protocol_is_told_by_its_first_byte(
    start: bytes, told: str, shown: int | None
) -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(start[:shown])
    assert decoder.take(1) == []
    assert isinstance(decoder.broken, UnsupportedVersion)
    assert told in decoder.broken.sentence
    # These words make a driver try an older version.
    assert "unsupported protocol version" in decoder.broken.sentence
    assert decoder.broken.remedy


@pytest.mark.parametrize(("ours", "theirs"), [(REQUEST, RESPONSE), (RESPONSE, REQUEST)])
def test_a_frame_of_the_wrong_direction_is_called_that(ours: int, theirs: int) -> None:
    decoder = FrameDecoder(ours, LIMIT)
    decoder.feed(encode_frame(theirs, 0, 9, 5, b""))
    assert decoder.take(1) == []
    assert type(decoder.broken) is ProtocolViolation
    assert "expected" in decoder.broken.sentence


def test_a_newer_driver_is_answered_on_its_own_stream() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(encode_frame(REQUEST, 0, 1, 5, b"") + encode_frame(0x05, 0, 9, 5, b""))
    assert len(decoder.take(1)) == 1
    assert decoder.broken is None
    assert decoder.take(1) == []
    assert decoder.broken_stream == 9


@given(st.lists(frames, min_size=1, max_size=5), st.binary(min_size=1, max_size=30))
def test_an_error_comes_after_the_frames_before_it(sent: list[Frame], rubbish: bytes) -> None:
    if rubbish[0] == REQUEST:
        rubbish = b"\xff" + rubbish
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(encoded(REQUEST, sent) + rubbish)
    for frame in sent:
        assert decoder.broken is None
        assert decoder.take(1) == [frame]
    assert decoder.take(1) == []
    assert decoder.broken is not None


def test_the_first_problem_stays() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.feed(b"G")
    decoder.take(1)
    problem = decoder.broken
    assert problem is not None
    decoder.feed(b"ET / HTTP/1.1\r\n" + encode_frame(REQUEST, 0, 1, 5, b""))
    assert decoder.take(EVERYTHING) == []
    assert decoder.broken is problem
    assert decoder.broken_stream == 0


@given(st.lists(st.binary(max_size=40), max_size=20), versions, st.integers(1, 3))
def test_rubbish_raises_nothing(chunks: list[bytes], version: int, most: int) -> None:
    decoder = FrameDecoder(version, LIMIT)
    for chunk in chunks:
        decoder.feed(chunk)
        before = decoder.waiting_bytes
        taken = decoder.take(most)
        after = decoder.waiting_bytes
        assert after == before - sum(HEADER_BYTES + len(frame.body) for frame in taken)
    data = b"".join(chunks)
    if data and data[0] != version:
        # The same version in the other direction is no other version.
        kind = ProtocolViolation if data[0] & 0x7F == VERSION else UnsupportedVersion
        assert type(decoder.broken) is kind


@given(frames, versions, versions, st.binary(max_size=3), st.binary(max_size=3), st.integers(-2, 2))
def test_the_short_way_finds_what_the_long_way_finds(
    frame: Frame, ours: int, theirs: int, before: bytes, after: bytes, room: int
) -> None:
    data = encode_frame(theirs, *frame) + after
    limit = len(frame.body) + room
    decoder = FrameDecoder(ours, limit)
    decoder.feed(before)
    found = decoder.alone(data)
    assert decoder.waiting_bytes == len(before), "it takes nothing that it does not give"
    reference = FrameDecoder(ours, limit)
    reference.feed(data)
    alone = not before and not after and ours == theirs and room >= 0
    assert (found is not None) == alone
    if found is not None:
        assert [found] == reference.take(EVERYTHING)
        assert type(found) is Frame


def test_there_is_no_short_way_behind_what_was_refused() -> None:
    decoder = FrameDecoder(REQUEST, LIMIT)
    decoder.broken = ProtocolViolation("It is over.")
    assert decoder.alone(encode_frame(REQUEST, 0, 1, 5, b"")) is None
    assert decoder.alone(b"\x04") is None


@pytest.mark.parametrize("piece", [1, 700, 5_000, 70_000, 300_000])
def test_a_large_frame_comes_in_pieces_of_any_size(piece: int) -> None:
    bodies = [b"a" * 10, bytes(range(256)) * 400, b"", b"z" * 200_000, b"q"]
    sent = b"".join(encode_frame(REQUEST, 0, 7, Opcode.ECHO, body) for body in bodies)
    decoder = FrameDecoder(REQUEST, 2**20)
    found: list[Frame] = []
    for at in range(0, len(sent), piece):
        decoder.feed(sent[at : at + piece])
        while frames := decoder.take(1):
            found += frames
    assert [frame.body for frame in found] == bodies
    assert all(type(frame.body) is bytes for frame in found)
    assert decoder.waiting_bytes == 0
    assert decoder.broken is None


def test_a_large_frame_in_tiny_pieces_takes_no_more_memory_than_it_has() -> None:
    decoder = FrameDecoder(REQUEST, 2**20)
    frame = encode_frame(REQUEST, 0, 7, Opcode.ECHO, b"x" * 500_000)
    decoder.feed(frame[:20])
    decoder.take(1)
    tracemalloc.start()
    try:
        for at in range(20, len(frame) - 1):
            decoder.feed(frame[at : at + 1])
        assert tracemalloc.get_traced_memory()[0] < 2 * len(frame)
    finally:
        tracemalloc.stop()
    assert decoder.waiting_bytes == len(frame) - 1
