from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess

import pytest

from maitred import __version__
from maitred.cli.main import COMMANDS
from tests.cli.running import MAITRED, maitred

HELP_CPU_SECONDS = 0.150


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(MAITRED), *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_starts_fast() -> None:
    # The fastest of several: noise only ever adds.
    fastest = min(cpu_seconds("--help") for _ in range(8))
    assert fastest < HELP_CPU_SECONDS, f"{fastest * 1e3:.0f} ms of CPU"


def test_help_names_every_command_without_importing_them() -> None:
    shown = maitred("--help").stdout
    for name, (_, line) in COMMANDS.items():
        assert name in shown
        assert line in shown


@pytest.mark.parametrize("command", [*COMMANDS, "simulate selection", "simulate soak"])
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
        (("banana",), "Choose one of: completion, route"),
        (("route", "--hots", "x"), "Did you mean"),
        (("route",), "Missing option '--namespace'"),
        (("simulate", "placemen"), "placemen"),
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
    command = f"{MAITRED} route --namespace n --queue q --hosts a:1 --partitions 50000 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("partition")
    assert done.stderr == ""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_stops_at_once_without_a_traceback(processes: str) -> None:
    running = subprocess.Popen(
        [str(MAITRED), "simulate", "soak", "--seeds", "1000000", "--processes", processes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    assert running.stderr.readline(), "the first line of progress"
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    # Ends when all processes have closed the pipe, workers too.
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in errors
    assert errors.endswith("maitred: stopped.\n")


def test_a_killed_soak_takes_its_workers_along() -> None:
    running = subprocess.Popen(
        [str(MAITRED), "simulate", "soak", "--seeds", "1000000", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert running.stderr.readline(), "the first line of progress"
    running.kill()
    # The workers hold the other end of this pipe: it is closed when the last of them is gone.
    running.communicate(timeout=30)


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
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [bash, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["route", "steady"]
