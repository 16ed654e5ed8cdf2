from __future__ import annotations

import os
import pty
import subprocess
import tomllib

import pytest

from maitred.security.secrets import SECRET_BYTES_MAX, verify
from tests.cli.running import MAITRED, maitred


def piped(content: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(MAITRED), "hash-secret"], input=content, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"open sesame\n", "open sesame"),
        (b"open sesame", "open sesame"),
        (b"open sesame\r\n", "open sesame"),
        (b" spaces \nand another line\n", " spaces "),
        ("Pässword\n".encode(), "Pässword"),
        (b"x" * SECRET_BYTES_MAX + b"\r\n", "x" * SECRET_BYTES_MAX),
    ],
)
def test_one_line_of_a_pipe(content: bytes, secret: str) -> None:
    done = piped(content)
    assert done.returncode == 0
    hashed = done.stdout.decode()
    assert hashed.count("\n") == 1, "a script gets the hash and nothing else"
    assert verify(secret, hashed.strip())
    assert secret.encode() not in done.stdout


def test_the_lines_to_paste_are_toml() -> None:
    done = piped(b"open sesame\n")
    lines = done.stderr.decode().split("choice:\n")[1]
    parsed = tomllib.loads(lines)
    assert parsed["users"]["alice"]["secret"] == done.stdout.decode().strip()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The secret is empty."),
        (b"\n", "The secret is empty."),
        (b"\xff\n", "no UTF-8 text"),
        (b"x" * (SECRET_BYTES_MAX + 1), "longer than 1,024 bytes"),
        (b"x" * 100_000, "longer than 1,024 bytes"),
    ],
)
def test_secrets_that_nobody_can_use(content: bytes, said: str) -> None:
    refused = piped(content)
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert said in refused.stderr.decode()
    assert b"Traceback" not in refused.stderr


def test_the_secret_is_never_an_argument() -> None:
    refused = maitred("hash-secret", "hunter2")
    assert refused.returncode == 2


class Typing:
    """Somebody at a terminal."""

    def __init__(self) -> None:
        self.screen = b""
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [str(MAITRED), "hash-secret"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def answer(self, question: bytes, text: bytes) -> None:
        shown = b""
        while question not in shown:
            shown += os.read(self._ours, 1_024)
        self.screen += shown
        os.write(self._ours, text + b"\n")

    def end(self) -> tuple[int, bytes]:
        output, _ = self._process.communicate(timeout=60)
        os.close(self._ours)
        return self._process.returncode, output


def test_at_a_terminal_it_is_typed_twice_and_not_shown() -> None:
    person = Typing()
    person.answer(b"Secret: ", b"open sesame")
    person.answer(b"Once more: ", b"open sesam")
    person.answer(b"Secret: ", b"open sesame")
    person.answer(b"Once more: ", b"open sesame")
    code, output = person.end()
    assert code == 0
    assert verify("open sesame", output.decode().strip())
    assert b"open" not in person.screen
