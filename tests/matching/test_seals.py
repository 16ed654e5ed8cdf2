"""Bodies of rows: whatever happens to their bytes is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred.matching.records import (
    Record,
    RowDamagedError,
    Segment,
    Terms,
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)
from maitred.matching.task_ends import decode_ended, encode_ended


def record(sequence: int) -> Record:
    return Record(sequence, 2, 0, 1.5, 0.0, Terms(), f"payload {sequence}".encode())


RECORDS = [record(number) for number in range(10, 14)]
SEGMENT = Segment(2, 10, 13, 4, encode_records(RECORDS))


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_every_byte_counts(at: int, change: int) -> None:
    body = bytearray(SEGMENT.body)
    body[at % len(body)] ^= change
    with pytest.raises(RowDamagedError):
        decode_records(SEGMENT._replace(body=bytes(body)))
    row = bytearray(encode_record(RECORDS[0]))
    row[at % len(row)] ^= change
    with pytest.raises(RowDamagedError):
        decode_record(bytes(row), 10)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for read in (
        lambda trusting: decode_records(SEGMENT._replace(body=body), trusting=trusting),
        lambda trusting: decode_record(body, 10, trusting=trusting),
        lambda trusting: decode_ended(body, trusting=trusting),
    ):
        for trusting in (False, True):
            with pytest.raises(RowDamagedError):
                read(trusting)


def test_a_row_that_is_cut_off_is_refused() -> None:
    for length in range(len(SEGMENT.body)):
        try:
            decode_records(SEGMENT._replace(body=SEGMENT.body[:length]))
        except RowDamagedError:
            continue
        pytest.fail(f"its first {length} bytes were read")


def test_rows_of_earlier_versions_have_no_checksum_and_are_read() -> None:
    assert decode_records(SEGMENT._replace(body=msgpack.encode(RECORDS))) == RECORDS
    assert decode_record(msgpack.encode(RECORDS[0]), 10) == RECORDS[0]
    assert decode_ended(msgpack.encode(("done", 1, b"x"))) == ("done", 1, b"x")


def test_a_row_of_other_tasks_is_refused() -> None:
    for wrong in (
        SEGMENT._replace(first=9),
        SEGMENT._replace(last=14),
        SEGMENT._replace(tasks=3),
        SEGMENT._replace(priority=1, body=msgpack.encode(RECORDS)),
    ):
        with pytest.raises(RowDamagedError):
            decode_records(wrong)
    with pytest.raises(RowDamagedError):
        decode_record(encode_record(RECORDS[0]), 11)


def test_a_person_may_ignore_the_checksum() -> None:
    body = SEGMENT.body.replace(b"payload 12", b"payload 1X")
    with pytest.raises(RowDamagedError):
        decode_records(SEGMENT._replace(body=body))
    read = decode_records(SEGMENT._replace(body=body), trusting=True)
    assert [one.payload for one in read][2] == b"payload 1X"
    ended = encode_ended(("done", 1, b"x"))
    assert decode_ended(ended) == ("done", 1, b"x")
