"""Other programs than today's: an earlier one, other protocol versions, a wrong clock."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
ALTERED = Path(__file__).parent / "altered"

PREVIOUS = "8e91812b3f06d86a13fbd3fa9ace8b11066c7876"
"""The last commit whose nodes speak only the version before `VERSIONS[-1]`. After a release this is
the release's tag; whoever adds a version moves it."""

PREVIOUS_VERSIONS = (1, 2)
"""The versions that the previous program speaks."""


class PreviousProgram(NamedTuple):
    """The program before this one, or what takes its place."""

    environment: dict[str, str]
    """The environment in which an interpreter runs it."""
    missing: str
    """Why it is not the real one; empty if it is."""


def previous_program(directory: Path) -> PreviousProgram:
    """Unpack the previous program from the history of the repository into the directory. Where
    there is no history (an unpacked archive, a shallow clone), today's code takes its place,
    restricted to the previous versions of the protocol, which is a weaker test."""
    git = shutil.which("git")
    found = git and subprocess.run(
        [git, "archive", PREVIOUS, "src/maitred"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if not found or found.returncode:
        stand_in = altered_program(versions=PREVIOUS_VERSIONS)
        return PreviousProgram(stand_in, f"the history has no commit {PREVIOUS}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    routing = Path("src/maitred/routing")
    for built in (ROOT / routing).glob("_tokens.*so"):
        shutil.copy(built, directory / routing)
    # An interpreter compiles what it imports, and three processes of a node would do so at once.
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(directory / "src")], check=True)
    return PreviousProgram({"PYTHONPATH": str(directory / "src")}, "")


def altered_program(*, versions: tuple[int, ...] = (), clock: float = 0.0) -> dict[str, str]:
    """The environment in which an interpreter runs today's code with other versions of the
    protocol, or with a wall clock that is so many seconds ahead."""
    return {
        "PYTHONPATH": os.pathsep.join((str(ALTERED), str(ROOT / "src"))),
        "ALTERED_VERSIONS": ",".join(map(str, versions)),
        "ALTERED_CLOCK": str(clock),
    }
