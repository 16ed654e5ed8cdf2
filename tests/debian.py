"""Programs that tests use and that no wheel has: root installs them from Debian's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

INSTALL_SECONDS: Final = 120
"""How long each of two steps of an installation may take."""

RETRY_SECONDS: Final = 600
"""How long after a failed installation none is tried."""


def installed(program: str, package: str = "") -> str | None:
    """Return the path of a program, which root installs if it is missing; None if it cannot be
    had. The package has the program's name unless told."""
    if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install_once(program, package or program)
    return shutil.which(program)


def _install_once(program: str, package: str) -> None:
    """Install a package, unless another process has, or failed to a while ago: without a network,
    every attempt may take minutes. All packages share one lock, since apt-get refuses to install
    one while another process installs a second."""
    directory = Path(tempfile.gettempdir())
    with (directory / "maitred-install.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = directory / f"maitred-install-{package}.failed"
        if failed.exists() and time.time() - failed.stat().st_mtime < RETRY_SECONDS:
            return
        if shutil.which(program) is None:
            _install(package)
        if shutil.which(program) is None:
            failed.touch()


def _install(package: str) -> None:
    """Install a package of Debian; a machine that is new has no list of packages yet."""
    # Without RUNLEVEL, Debian would start it as a service, at every start of the machine.
    environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_SECONDS}", *words],
                capture_output=True,
                check=False,
                timeout=INSTALL_SECONDS,
                env=environment,
            )
