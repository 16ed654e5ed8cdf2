"""Lines for people and for programs, whatever is put into them and whatever they are written to."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidSetting, Unauthenticated
from maitred.logs import Logger, logger, silent, wants_colour
from maitred.settings import Log

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON = 1_794_744_000.25
"""2026-11-15T12:00:00.250Z"""


def clock() -> float:
    return NOON


def json_lines(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_time_level_event_context_and_fields_in_this_order() -> None:
    stream = io.StringIO()
    log = logger(Log(), stream, wall_clock=clock, shard=3)
    log.bind(peer="a:1").warning("too slow", seconds=1.5)
    log.info("next")
    first, second = stream.getvalue().splitlines()
    assert first == (
        '{"timestamp":"2026-11-15T12:00:00.250Z","level":"warning","event":"too slow",'
        '"shard":3,"peer":"a:1","seconds":1.5}'
    )
    assert json.loads(second) == {
        "timestamp": "2026-11-15T12:00:00.250Z",
        "level": "info",
        "event": "next",
        "shard": 3,
    }


def test_fields_cannot_take_the_place_of_the_time_or_the_level() -> None:
    stream = io.StringIO()
    logger(Log(), stream, wall_clock=clock).info("x", level=3, timestamp=4)
    (line,) = json_lines(stream)
    assert (line["level"], line["level_"], line["timestamp_"]) == ("info", 3, 4)
    assert line["timestamp"].startswith("2026-11-15")


@pytest.mark.parametrize("seconds", [float("nan"), 1e300, -1e300])
def test_a_clock_that_is_off_spoils_the_time_and_not_the_line(seconds: float) -> None:
    stream = io.StringIO()
    logger(Log(), stream, wall_clock=lambda: seconds).info("x")
    assert json_lines(stream)[0]["timestamp"] == f"{seconds} s"


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_nothing_below_the_level(level: Literal["debug", "info", "warning", "error"]) -> None:
    stream = io.StringIO()
    log = logger(Log(level=level), stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(name)
    names = ["debug", "info", "warning", "error"]
    assert [line["level"] for line in json_lines(stream)] == names[names.index(level) :]


def test_errors_of_ours_are_told_with_code_sentence_and_remedy() -> None:
    problem = InvalidSetting("port is 0.", remedy="Use 1.")
    for_programs, for_people = io.StringIO(), io.StringIO()
    logger(Log(), for_programs).error("refused", error=problem)
    logger(Log(format="human"), for_people).error("refused", error=problem)
    (line,) = json_lines(for_programs)
    assert line["error"] == {
        "code": "invalid-setting",
        "sentence": "port is 0.",
        "remedy": "Use 1.",
    }
    assert "port is 0. Use 1. [invalid-setting]" in for_people.getvalue()
    logger(Log(), for_programs).error("x", error=Unauthenticated("No."), other=KeyError("k"))
    line = json_lines(for_programs)[1]
    assert line["error"] == {"code": "unauthenticated", "sentence": "No."}
    assert line["other"] == "KeyError: 'k'"


def test_a_stack_is_shown_below_its_line_and_cannot_pass_for_one() -> None:
    stream = io.StringIO()
    log = logger(Log(format="human"), stream, wall_clock=clock)
    log.warning(
        "a handler blocks", stack='  File "shop.py", line 7\n    time.sleep(9)\n', shown="a\nb"
    )
    log.warning("failed", exception="Traceback\nValueError: no\n2026-11-15 [error] forged\x1b[2J")
    first, frame, code, second, *trace = stream.getvalue().splitlines()
    assert "a handler blocks" in first
    assert "a\\x0ab" in first or "a\\nb" in first, "any other field stays on its line"
    assert (frame, code) == ('    File "shop.py", line 7', "      time.sleep(9)")
    assert "failed" in second
    assert trace == ["  Traceback", "  ValueError: no", "  2026-11-15 [error] forged\\x1b[2J"]


@pytest.mark.parametrize("form", ["json", "human"])
def test_exceptions_come_with_their_traceback(form: Literal["json", "human"]) -> None:
    stream = io.StringIO()
    log = logger(Log(format=form), stream)
    try:
        raise ZeroDivisionError("nothing\x1b[31m to divide by")  # noqa: TRY301
    except ZeroDivisionError:
        log.exception("failed")
    text = json_lines(stream)[0]["exception"] if form == "json" else stream.getvalue()
    assert "Traceback (most recent call last)" in text
    assert "test_logs.py" in text
    assert "nothing" in text
    if form == "json":
        assert json_lines(stream)[0]["level"] == "error"
    else:
        assert "\x1b" not in text, "also not by way of an exception's message"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


def cycle() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize(
    "value",
    [b"bytes", "\udc80", 10**40, float("nan"), object(), Rude(), cycle(), {1: 2}, {"a", "b"}, None],
    ids=lambda value: type(value).__name__,
)
def test_anything_can_be_logged(form: Literal["json", "human"], value: object) -> None:
    stream = io.StringIO()
    logger(Log(format=form), stream).info("look", value=value)
    assert stream.getvalue().count("\n") == 1
    if form == "json":
        assert json_lines(stream)[0]["event"] == "look"
    else:
        assert "look" in stream.getvalue()


@given(st.text(), st.text())
def test_nobody_can_forge_a_line_or_command_the_terminal(event: str, value: str) -> None:
    for form in ("human", "json"):
        stream = io.StringIO()
        logger(Log(format=form), stream).info(event, value=value)
        text = stream.getvalue()
        assert text.endswith("\n")
        if form == "human":
            assert text[:-1].isprintable()
        else:
            assert "\n" not in text[:-1]
            assert json.loads(text)["value"] == value


@pytest.fixture
def terminal() -> Iterator[tuple[io.TextIOWrapper, int]]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        assert isinstance(stream, io.TextIOWrapper)
        yield stream, ours
    os.close(ours)


def test_a_terminal_gets_colours_and_nothing_else_does(
    terminal: tuple[io.TextIOWrapper, int],
) -> None:
    stream, other_end = terminal
    logger(Log(), stream).info("hello", shard=1)
    shown = os.read(other_end, 4_096).decode()
    assert "\x1b[" in shown
    assert "hello" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    logger(Log(format="json"), stream).info("hello")
    assert json.loads(os.read(other_end, 4_096))["event"] == "hello"
    elsewhere = io.StringIO()
    logger(Log(format="human"), elsewhere).info("hello")
    assert "\x1b" not in elsewhere.getvalue()


def test_the_default_is_standard_error_as_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    logger(Log()).info("hello")
    captured = capsys.readouterr()
    assert json.loads(captured.err)["event"] == "hello"
    assert captured.out == ""


def test_nobodys_global_configuration_matters() -> None:
    stream = io.StringIO()
    log = logger(Log(), stream)
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    try:
        log.info("one")
        logger(Log(), stream).info("two")
    finally:
        structlog.reset_defaults()
    assert [line["event"] for line in json_lines(stream)] == ["one", "two"]


def test_a_line_is_one_write_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = os.write

    def watched(file: int, data: bytes) -> int:
        written.append(bytes(data))
        return real(file, data)

    monkeypatch.setattr(os, "write", watched)
    with open(os.devnull, "w") as stream:  # noqa: PTH123
        log = logger(Log(), stream)
        log.info("short")
        log.info("long", text="x" * 50_000)
    assert [line.count(b"\n") for line in written] == [1, 1]


def test_lines_of_several_processes_do_not_mix() -> None:
    program = (
        "import sys; from maitred.logs import logger; from maitred.settings import Log\n"
        "log = logger(Log(), process=int(sys.argv[1]))\n"
        "for turn in range(200): log.info('line', turn=turn, text='x' * 3_500)"
    )
    reader, writer = os.pipe()
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(number)], stderr=writer)
        for number in range(3)
    ]
    os.close(writer)
    with os.fdopen(reader) as stream:
        lines = [json.loads(line) for line in stream]
    assert [process.wait() for process in processes] == [0, 0, 0]
    for number in range(3):
        assert [line["turn"] for line in lines if line["process"] == number] == list(range(200))


@pytest.mark.parametrize("form", ["json", "human"])
def test_a_stream_that_cannot_be_written_does_no_harm_and_the_loss_is_told(
    form: Literal["json", "human"],
) -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Full()
    log = logger(Log(format=form), stream)
    log.info("one")
    log.bind(x=1).info("two")
    stream.full = False
    log.info("three")
    log.info("four")
    lost, three, four = stream.getvalue().splitlines()
    assert "2 lines before this one could not be written" in lost
    assert "three" in three
    assert "four" in four
    stream.close()
    log.info("into a closed stream")


def test_a_full_pipe_that_does_not_block_loses_lines_whole() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(writer, "w") as stream:
        log = logger(Log(), stream)
        for turn in range(300):
            log.info("line", turn=turn, text="x" * 5_000)
        content = os.read(reader, 1 << 20)
        log.info("again")
        content += os.read(reader, 1 << 20)
    os.close(reader)
    lines = content.decode().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert len(lines) - len(whole) <= 1, "at most the one that was torn"
    assert whole[-1]["event"] == "again"
    assert re.fullmatch(r"\d+ lines before this one could not be written", whole[-2]["event"])


def test_silence() -> None:
    log: Logger = silent()
    for name in ("debug", "info", "warning", "error", "exception"):
        assert getattr(log.bind(a=1), name)("event", field=2) is None


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, True),
        ({"TERM": "xterm"}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_can_be_refused(environment: dict[str, str], wanted: bool) -> None:
    assert wants_colour(environment) is wanted
