"""What the fuzzer starts from and what it has found, replayed without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.bodies import READERS
from fuzz.decode import NUMBERS, examine, targets
from fuzz.parts import PARTS
from fuzz.violated import Violated

from maitred.gateway.http.connection import HttpConnection
from maitred.protocol.frames import Frame, FrameDecoder
from maitred.protocol.messages import REQUESTS

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"

INPUTS = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_an_input_does_no_harm(path: Path) -> None:
    examine(path.read_bytes())


def test_there_is_a_corpus_for_each_target() -> None:
    assert {path.read_bytes()[0] % NUMBERS for path in INPUTS} == targets().keys()


@pytest.mark.parametrize("prefix", ["stream-0", "raw-driver", "requests-all"])
def test_the_targets_notice_lost_frames(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that swallows some of them is what they are there to find."""
    whole = FrameDecoder.take

    def lossy(self: FrameDecoder, most: int) -> list[Frame]:
        return [frame for frame in whole(self, most) if frame.stream != 2]

    data = (CORPUS / prefix).read_bytes()
    monkeypatch.setattr(FrameDecoder, "take", lossy)
    with pytest.raises(Violated):
        examine(data)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("http-plain", (HttpConnection, "answer")),
        ("http-tls", (HttpConnection, "_refuse")),
        ("http-smuggling", (HttpConnection, "look_at_clock")),
        ("http-unfinished", (HttpConnection, "_leave")),
    ],
)
def test_the_http_target_notices_what_is_not_done(
    name: str, lost: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that forgets to answer, to count or to look at its clock."""
    data = (CORPUS / name).read_bytes()
    monkeypatch.setattr(*lost, lambda *_, **__: None)
    with pytest.raises(Violated):
        examine(data)


def test_bytes_too_short_to_choose_anything_are_nothing() -> None:
    examine(b"")
    examine(b"\2")


def test_there_is_an_input_for_each_body_and_each_request() -> None:
    """What comes new is found by the fuzzer from there, not from nothing."""
    bodies = {data[1] for data in map(Path.read_bytes, INPUTS) if data[0] % NUMBERS == 0}
    assert bodies == set(range(len(READERS)))
    chosen = {
        which % len(PARTS)
        for data in map(Path.read_bytes, INPUTS)
        if data[0] % NUMBERS == 3
        for which in data[2::3]
    }
    assert chosen == set(range(len(PARTS)))
    assert {opcode for opcode, _ in PARTS} >= REQUESTS.keys()
