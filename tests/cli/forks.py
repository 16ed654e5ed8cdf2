"""Runs `maitred` commands as forks of one process that has imported them all.

A new interpreter spends most of a short command's time on imports, and tests run hundreds of
commands. A fork is a process of its own all the same, with its own arguments, environment,
directory and standard streams. The processes of a node, which the supervisor starts as new
interpreters, are forked from the supervisor in the same way. Tests of the program's start and end
run `MAITRED` afresh, and tests of the supervisor have it start new interpreters.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import io
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
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import IO, Self, TypedDict

    class Request(TypedDict):
        """A command to fork."""

        arguments: list[str]
        environment: dict[str, str]
        directory: str
        own_session: bool
        interpreters: bool
        """Whether the processes of a node are new interpreters."""


MAITRED = Path(sys.executable).parent / "maitred"
LONGEST_READ_BYTES = 65_536
NODE_PROCESSES = {"maitred.node.shard_process", "maitred.gateway.process"}
"""Modules that a supervisor starts as processes. Each has a function `run`."""

_start_interpreter = asyncio.create_subprocess_exec


class Forked:
    """A command that was forked; it is used as `subprocess.Popen` is."""

    def __init__(self, arguments: Sequence[str], told: int) -> None:
        self.args = arguments
        self._told = os.fdopen(told, "rb", 0)
        self.pid = int(self._told.readline())
        self.returncode: int | Any = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status when it has ended; the signal that ended it is a negative number."""
        # Another thread may wait as well, and one that only looks must not wait for that.
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        try:
            if self.returncode is None:
                ended = select.poll()  # it takes any descriptor, unlike select.select
                ended.register(self._told, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = int(self._told.read())
                self._told.close()
            return int(self.returncode)
        finally:
            self._waiting.release()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still writes, when it and whatever it started have closed both streams."""
        texts = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            texts[number] = stream.read()

        readers = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return texts[0], texts[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class Forks:
    """Starts the process that forks, on first use, and asks it for commands; ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end. Raise `subprocess.TimeoutExpired` if it takes longer."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            files = output.fileno(), errors.fileno()
            forked = self._fork(
                arguments, environment, Path.cwd(), files, own_session=False, interpreters=False
            )
            try:
                status = forked.wait(timeout)
            finally:
                forked.kill()
                forked.wait()
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(
                forked.args, status, output.read().decode(), errors.read().decode()
            )

    def start(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        own_session: bool = True,
        interpreters: bool = False,
    ) -> Forked:
        """Start the command, with pipes for what it writes. With `interpreters`, a node starts its
        processes as new interpreters."""
        chosen = os.environ if environment is None else environment
        pipes = [os.pipe(), os.pipe()]
        try:
            files = pipes[0][1], pipes[1][1]
            place = directory or Path.cwd()
            forked = self._fork(
                arguments,
                chosen,
                place,
                files,
                own_session=own_session,
                interpreters=interpreters,
            )
        finally:
            for _, write in pipes:
                os.close(write)
        forked.stdout, forked.stderr = (os.fdopen(read) for read, _ in pipes)
        return forked

    def _fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        files: tuple[int, int],
        *,
        own_session: bool,
        interpreters: bool,
    ) -> Forked:
        request: Request = {
            "arguments": [str(MAITRED), *arguments],
            "environment": dict(environment),
            "directory": str(directory),
            "own_session": own_session,
            "interpreters": interpreters,
        }
        text = json.dumps(request).encode()
        told, tells = os.pipe()
        with self._lock:
            asking = self._connected()
            # Descriptors travel with these bytes, and the rest follows as a stream.
            socket.send_fds(asking, [len(text).to_bytes(4, "big")], [*files, tells])
            asking.sendall(text)
        os.close(tells)
        return Forked(request["arguments"], told)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL
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
        head, files, _, _ = socket.recv_fds(asked, 4, 3)
        if not head:
            return False
        text, length = b"", int.from_bytes(head, "big")
        while len(text) < length:
            text += asked.recv(min(length - len(text), LONGEST_READ_BYTES))
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
        os.close(output)
        os.close(errors)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.write(tells, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(tells, b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for file in files:
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Python's own objects know whether they can seek, which was true of another file.
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), errors="backslashreplace", line_buffering=True
    )
    if request["own_session"]:
        os.setsid()
        # A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP; a person's
        # command has neither.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = request["arguments"]
    if not request["interpreters"] and hasattr(os, "pidfd_open"):
        asyncio.create_subprocess_exec = _start_node_process  # type: ignore[assignment]
    return True


class _NodeProcess:
    """A forked process of a node, which the supervisor uses as `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._file = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._file, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode


async def _start_node_process(*command: str, **options: Any) -> object:  # noqa: ANN401 - whatever
    """Stands for `asyncio.create_subprocess_exec` in a supervisor."""
    *_, module, file = command
    if module not in NODE_PROCESSES:
        return await _start_interpreter(*command, **options)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_node_process(module, file, options["pass_fds"])
    return _NodeProcess(pid)


def _become_node_process(module: str, file: str, inherited: Sequence[int]) -> NoReturn:
    """Be as a new interpreter would be, but for the modules that it has, and run the module."""
    # Frozen objects stay: sockets of the supervisor would close files that are others' by then.
    gc.freeze()
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(2, 1)
    kept = sorted({0, 1, 2, *inherited})
    for before, after in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(before + 1, after)
    sys.argv = [module, file]
    _leave_after(import_module(module).run)


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

    sys.path[0] = str(MAITRED.parent)  # as the installed script has it
    for module in pkgutil.walk_packages(maitred.__path__, "maitred."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    gc.freeze()
    # A copy, since commands have another standard input.
    if serve(socket.socket(fileno=os.dup(0))):
        _leave_after(run)


if __name__ == "__main__":
    main()
