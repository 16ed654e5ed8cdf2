"""Runs the real command, as a person does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.cli import forks

if TYPE_CHECKING:
    from collections.abc import Iterator

MAITRED = forks.MAITRED
FORKS = forks.Forks()


def maitred(
    *arguments: str, environment: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, from start to end."""
    chosen = os.environ if environment is None else environment
    return FORKS.run(arguments, chosen, timeout)


def maitred_json(*arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    done = maitred(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# A shell starts background jobs with SIGINT ignored, and children inherit that; a person's command
# is never started like this. The wrapper restores what a terminal would give.
_AS_FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@contextmanager
def running(*arguments: str) -> Iterator[forks.Forked]:
    """The command in a session of its own, killed with all its processes at the end."""
    with FORKS.start(*arguments) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def running_afresh(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The same in a new interpreter, for tests of how the program itself starts and ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _AS_FROM_A_TERMINAL, str(MAITRED), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
