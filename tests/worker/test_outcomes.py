"""How an attempt ended, in bytes; whatever somebody's handler does."""

from __future__ import annotations

import msgspec
import pytest

from maitred.app.signature import encode
from maitred.protocol.tasks import DONE, FAILED, Failure
from maitred.worker.outcomes import MESSAGE_LETTERS, TRACEBACK_LETTERS, called, raised, returned

MOST = 1000


def failure(ending: tuple[int, bytes]) -> Failure:
    assert ending[0] == FAILED
    return msgspec.msgpack.decode(ending[1], type=Failure)


def test_results() -> None:
    assert returned(None, MOST) == (DONE, b"\xc0")
    assert returned({"a": 1}, MOST) == (DONE, encode({"a": 1}))


@pytest.mark.parametrize("result", [object(), lambda: None, 2**70, "\ud800", {1: {2: object()}}])
def test_what_cannot_be_written_is_a_failure(result: object) -> None:
    assert failure(returned(result, MOST)).kind == "unserialisable-result"


def test_a_result_that_contains_itself_is_a_failure() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert failure(returned(endless, MOST)).kind == "unserialisable-result"


def test_a_result_beyond_the_nodes_limit_is_a_failure() -> None:
    told = failure(returned(bytes(2000), MOST))
    assert told.kind == "payload-too-large"
    assert "1,000" in told.message


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise ValueError("too small" * 1000)


def test_an_exception_is_told_with_its_traceback_within_limits() -> None:
    told = failure(called(deep, (100,), {}, MOST))
    assert told.kind == "ValueError"
    assert len(told.message) == MESSAGE_LETTERS
    assert 0 < len(told.traceback) <= TRACEBACK_LETTERS


def test_the_traceback_begins_in_the_handler() -> None:
    def handler() -> None:
        raise KeyError("here")

    told = failure(called(handler, (), {}, MOST))
    assert told.traceback.splitlines()[1].endswith("in handler")
    assert 'raise KeyError("here")' in told.traceback


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "problem", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(1), Broken()]
)
def test_whatever_is_raised_is_a_failure(problem: BaseException) -> None:
    def handler() -> None:
        raise problem

    assert failure(called(handler, (), {}, MOST)).kind == type(problem).__name__


def test_half_a_character_is_told_too() -> None:
    assert failure(raised(ValueError("\ud800"))).message == "\\ud800"
