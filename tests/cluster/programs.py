"""Other programs than today's: an earlier one, other protocol versions, a wrong clock."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ALTERED = Path(__file__).parent / "altered"

PREVIOUS = "6b8db736aa73938460de17024fc167390c26e4d8"
"""The last commit whose nodes speak only the version before `VERSIONS[-1]`. After a release this is
the release's tag; whoever adds a version moves it."""

PREVIOUS_VERSIONS = (1,)
"""The versions that the previous program speaks."""


def previous_program(directory: Path) -> dict[str, str]:
    """The environment in which an interpreter runs the previous program.

    Its source comes from the history of the repository. Where there is none (an unpacked archive,
    a shallow clone), today's code takes its place, restricted to the versions of the previous one:
    a weaker test, of which pytest warns.
    """
    git = shutil.which("git")
    found = git and subprocess.run(
        [git, "archive", PREVIOUS, "src/maitred"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if not found or found.returncode:
        warnings.warn(
            f"The history has no commit {PREVIOUS}: the previous program is today's code, "
            "restricted to the previous versions of the protocol.",
            stacklevel=2,
        )
        return altered_program(versions=PREVIOUS_VERSIONS)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    routing = Path("src/maitred/routing")
    for built in (ROOT / routing).glob("_tokens.*so"):
        shutil.copy(built, directory / routing)
    # An interpreter compiles what it imports, and three processes of a node would do so at once.
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(directory / "src")], check=True)
    return {"PYTHONPATH": str(directory / "src")}


def altered_program(*, versions: tuple[int, ...] = (), clock: float = 0.0) -> dict[str, str]:
    """The environment in which an interpreter runs today's code with other versions of the
    protocol, or with a wall clock that is so many seconds ahead."""
    return {
        "PYTHONPATH": os.pathsep.join((str(ALTERED), str(ROOT / "src"))),
        "ALTERED_VERSIONS": ",".join(map(str, versions)),
        "ALTERED_CLOCK": str(clock),
    }
