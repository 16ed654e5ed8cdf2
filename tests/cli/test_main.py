from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maitred import __version__
from maitred.cli.main import COMMANDS
from tests.cli.running import MAITRED, maitred, running_afresh

HELP_TIMES_PYTHON = 10
"""The CPU time of `maitred --help`, at most, in that of an interpreter that does nothing: a slow
or busy machine slows both down."""


def cpu_seconds(*command: str) -> float:
    """The CPU time of the command, the fastest of several: noise only ever adds."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(8))


def test_help_starts_fast() -> None:
    ours, bare = cpu_seconds(str(MAITRED), "--help"), cpu_seconds(sys.executable, "-c", "")
    assert ours < HELP_TIMES_PYTHON * bare, f"{ours * 1e3:.0f} ms of CPU, {bare * 1e3:.0f} bare"


def test_help_names_every_command_without_importing_them() -> None:
    shown = maitred("--help").stdout
    for name, (_, line) in COMMANDS.items():
        assert name in shown
        assert line in shown


@pytest.mark.parametrize("command", [*COMMANDS, "simulate capacity", "simulate soak"])
def test_every_command_has_help(command: str) -> None:
    shown = maitred(*command.split(), "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"Usage: maitred {command}")


def test_version() -> None:
    assert maitred("--version").stdout == f"maitred, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rout",), "Did you mean 'route'?"),
        (("banana",), "Choose one of: admin, completion, config"),
        (("route", "--hots", "x"), "Did you mean"),
        (("route",), "Missing option '--namespace'"),
        (("simulate", "soka"), "Did you mean 'soak'?"),
        (("simulate", "soak", "--seed", "1", "--seeds", "5"), "give one of them"),
        (("simulate", "soak", "--seeds", "9" * 20), "is not in the range"),
        (("simulate", "soak", "--processes", "9999"), "is not in the range"),
        (("completion", "tcsh"), "'tcsh' is not one of"),
        ((), "Usage: maitred"),
    ],
)
def test_wrong_words_get_a_hint_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    refused = maitred(*arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_output_into_a_closed_pipe_is_quiet() -> None:
    command = '"$0" route --namespace n --queue q --hosts a:1 --partitions 50000 | head -1'
    done = subprocess.run(
        ["sh", "-c", command, str(MAITRED)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("partition")
    assert done.stderr == ""


ENDLESS = ("simulate", "soak", "--seeds", "1000000")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_stops_at_once_without_a_traceback(processes: str) -> None:
    with running_afresh(*ENDLESS, "--processes", processes) as soak:
        assert soak.stderr is not None
        assert soak.stderr.readline(), "the first line of progress"
        os.killpg(soak.pid, signal.SIGINT)  # as a terminal does: to every process of the command
        # Ends when all processes have closed the pipe, workers too.
        _, errors = soak.communicate(timeout=30)
    assert soak.returncode == 130
    assert "Traceback" not in errors
    assert errors.endswith("maitred: stopped.\n")


def test_a_killed_soak_takes_its_workers_along() -> None:
    with running_afresh(*ENDLESS, "--processes", "2") as soak:
        assert soak.stderr is not None
        assert soak.stderr.readline(), "the first line of progress"
        soak.kill()
        # The workers hold the other end of this pipe: it is closed when the last of them is gone.
        soak.communicate(timeout=30)


def test_a_full_disk_is_said_plainly() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("NO /dev/full HERE: a full disk was not tried")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(MAITRED), "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert (
        done.stderr == "maitred: Cannot write the output: No space left on device. [cannot-write]\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_tree_is_drawn_whatever_the_terminal_can_show(encoding: str) -> None:
    done = subprocess.run(
        [str(MAITRED), "route", "--namespace", "n", "--queue", "q", "--hosts", "a:1"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=True,
    )
    assert b" 3  a:1/0" in done.stdout
    assert done.stderr == b""


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maitred", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"maitred, version {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    script = maitred("completion", shell)
    assert script.returncode == 0
    assert "_MAITRED_COMPLETE" in script.stdout


def test_bash_really_completes() -> None:
    """The printed script, in a real bash, asked what `maitred ro<TAB>` would give."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("NO BASH HERE: completion was not tried in a shell")
    program = (
        f'export PATH="{MAITRED.parent}:$PATH"; eval "$(maitred completion bash)";'
        "COMP_WORDS=(maitred ro); COMP_CWORD=1; _maitred_completion maitred;"
        'echo "${COMPREPLY[@]}";'
        "COMPREPLY=(); COMP_WORDS=(maitred route --placement st); COMP_CWORD=3;"
        "_maitred_completion maitred;"
        'echo "${COMPREPLY[@]}";'
        "COMPREPLY=(); COMP_WORDS=(maitred simulate soak --scenario st); COMP_CWORD=4;"
        "_maitred_completion maitred;"
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [bash, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["route", "steady", "streams"]


def test_what_ctrl_c_leaves_unfinished_is_not_complained_of() -> None:
    """It may strike between the making of a coroutine and its first step."""
    program = """
import maitred.cli.main as main

async def never(): ...

def interrupted(**_):
    coroutine = never()
    raise KeyboardInterrupt

main.cli.main = interrupted
main.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "maitred: stopped.\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(closed: str) -> None:
    """A file that is opened later must not become standard output, which the event loop refuses to
    close."""
    command = f"{MAITRED} status --url maitred://127.0.0.1:1 --timeout 1 {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    listed = subprocess.run(["sh", "-c", f"{MAITRED} config list {closed}"], check=False)
    assert listed.returncode == 0
