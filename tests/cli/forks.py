"""Runs `maitred` commands as forks of one process that has imported them all.

A new interpreter spends most of a short command's time on imports, and tests run hundreds of short
commands. A fork is a process of its own all the same, with its own arguments, environment,
directory and standard streams. Tests of the program's start and end run `MAITRED` afresh.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Request = tuple[list[str], dict[str, str], str]
    """Arguments, environment and directory of a command."""

ROOT = Path(__file__).parent.parent.parent
LONGEST_REQUEST_BYTES = 4_000_000


class Forks:
    """Starts the process that forks, on first use, and asks it for commands; ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end. Raise `subprocess.TimeoutExpired` if it takes longer."""
        request = [program, *arguments], dict(environment), str(Path.cwd())
        told, tells = os.pipe()
        with (
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
            os.fdopen(told, "rb", 0) as told_file,
        ):
            with os.fdopen(tells, "wb", 0) as tells_file, self._lock:
                asking = self._connected()
                files = [output.fileno(), errors.fileno(), tells_file.fileno()]
                text = json.dumps(request).encode()
                # Descriptors travel with the first byte, and the rest follows as a stream.
                socket.send_fds(asking, [len(text).to_bytes(4, "big")], files)
                asking.sendall(text)
            pid = int(told_file.readline())
            if not select.select([told], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                told_file.read()
                raise subprocess.TimeoutExpired([program, *arguments], timeout)
            status = int(told_file.read())
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(
                [program, *arguments], status, output.read().decode(), errors.read().decode()
            )

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forks"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
            )
            theirs.close()
            atexit.register(self._end)
        return self._socket

    def _end(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait(30)


def serve(asked: socket.socket) -> bool:
    """Fork for each request until nobody can ask any more (False). True in a command's process."""
    while True:
        length, files, _, _ = socket.recv_fds(asked, 4, 3)
        if not length:
            return False
        text = b""
        while len(text) < int.from_bytes(length, "big"):
            text += asked.recv(LONGEST_REQUEST_BYTES)
        if os.fork() == 0:
            asked.close()
            return _attend(json.loads(text), files)
        for file in files:
            os.close(file)
        while _ended():
            pass


def _ended() -> bool:
    """Collect one process that has ended, if there is one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _attend(request: Request, files: list[int]) -> bool:
    """Fork the command and report its process id and its exit status. True in its process."""
    output, errors, tells = files
    pid = os.fork()
    if pid:
        os.write(tells, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(tells, b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    arguments, environment, directory = request
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in files:
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = arguments
    return True


def _leave_after(command: Callable[[], None]) -> NoReturn:
    """Run the command and end as a program does, but leave the modules in place: to take them apart
    costs more than most commands."""
    status: object = 0
    try:
        command()
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:  # noqa: BLE001 - as Python itself does
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def main() -> None:
    import maitred
    from maitred.cli.main import run

    sys.path[0] = str(Path(sys.executable).parent)  # as the installed script has it
    for module in pkgutil.walk_packages(maitred.__path__, "maitred."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    gc.freeze()
    # A copy, since commands have another standard input.
    if serve(socket.socket(fileno=os.dup(0))):
        _leave_after(run)


if __name__ == "__main__":
    main()
