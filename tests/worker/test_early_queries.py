"""Queries that are earlier than the node's word of their token."""

from __future__ import annotations

from typing import Any, cast

import pytest

from maitred.protocol.query_link import RunQuery
from maitred.worker.early_queries import EarlyQueries, EarlyQuery

A, B = b"a" * 16, b"b" * 16


def an_early_query(token: bytes, size: int, until: float, stream: int = 0) -> EarlyQuery:
    message = RunQuery(token, 1, 0, 0, bytes(size))
    return EarlyQuery(cast("Any", None), stream, message, until)


def streams(queries: list[EarlyQuery]) -> list[int]:
    return [one.stream for one in queries]


def test_queries_wait_in_their_order_and_in_bounded_memory() -> None:
    early = EarlyQueries(3, 100)
    assert early.park(an_early_query(A, 30, 1.0, 1))
    assert early.park(an_early_query(A, 30, 1.5, 2))
    assert early.park(an_early_query(B, 30, 2.0, 3))
    assert not early.park(an_early_query(A, 1, 2.0, 4)), "too many"
    assert early.next_at() == 1.0
    assert streams(early.take(A)) == [1, 2]
    assert early.take(A) == []
    assert not early.park(an_early_query(A, 71, 2.0, 5)), "too large"
    assert early.park(an_early_query(A, 70, 2.0, 6))
    assert streams(early.drop(A, lambda one: one.stream == 6)) == [6]
    assert early.drop(A, lambda one: one.stream == 6) == []
    assert (early.count, early.bytes) == (1, 30)
    assert early.late(1.9) == []
    assert streams(early.late(2.0)) == [3]
    assert (early.count, early.bytes, early.next_at()) == (0, 0, None)


def test_one_of_several_queries_with_a_token_is_dropped() -> None:
    early = EarlyQueries(3, 100)
    for stream in (1, 2, 3):
        assert early.park(an_early_query(A, 10, 1.0, stream))
    assert streams(early.drop(A, lambda one: one.stream == 2)) == [2]
    assert (early.count, early.bytes) == (2, 20)
    assert streams(early.take(A)) == [1, 3]


def test_queries_wait_once_more_if_the_loop_was_blocked() -> None:
    early = EarlyQueries(3, 100)
    assert early.park(an_early_query(A, 30, 1.0, 1))
    assert early.park(an_early_query(A, 30, 1.2, 2))
    assert streams(early.late(1.2)) == [2], "in time"
    assert early.next_at() == pytest.approx(1.4)
    assert early.late(1.3) == [], "the node's word may lie in a socket"
    assert streams(early.late(1.5)) == [1], "once only"
