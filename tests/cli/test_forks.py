"""A command that is forked does what one in a new interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.running import FORKS, MAITRED, maitred

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("route", "--namespace", "n", "--queue", "q", "--hosts", "a:1,b:2"),
        ("rout",),
        ("route", "--namespace", "n", "--queue", "q", "--hosts", ""),
        ("config", "show"),
        ("status", "--url", "maitred://127.0.0.1:1", "--timeout", "0.1"),
    ],
    ids=" ".join,
)
def test_both_print_the_same_and_end_alike(arguments: tuple[str, ...]) -> None:
    afresh = subprocess.run(
        [str(MAITRED), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    forked = maitred(*arguments)
    assert (forked.returncode, forked.stdout) == (afresh.returncode, afresh.stdout)
    assert forked.stderr == afresh.stderr
    assert forked.args == afresh.args


def test_each_has_its_own_environment_and_directory(tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text("port = 5123\n")
    environment = {**os.environ, "MAITRED_SHARDS": "7"}
    with FORKS.start(
        "config", "show", "--config", "here.toml", environment=environment, directory=tmp_path
    ) as shown:
        output, errors = shown.communicate(60)
    assert (shown.returncode, errors) == (0, "")
    assert "5123" in output
    assert any(line.split()[:2] == ["shards", "7"] for line in output.splitlines()), output
    assert "5123" not in maitred("config", "show").stdout


def test_one_that_runs_is_waited_for_and_killed() -> None:
    with FORKS.start("simulate", "soak", "--seeds", "1000000") as soak:
        assert soak.stderr is not None
        assert soak.stderr.readline()
        assert soak.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            soak.wait(0.01)
        assert os.getpgid(soak.pid) == soak.pid
        os.killpg(soak.pid, signal.SIGKILL)
        assert soak.wait() == -signal.SIGKILL
        assert soak.poll() == soak.returncode == -signal.SIGKILL
        soak.kill()  # does nothing, since the process id may be somebody else's by now


def test_one_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        maitred("simulate", "soak", "--seeds", "1000000", timeout=0.01)
