"""Runs the real command, as a person does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MAITRED = Path(sys.executable).parent / "maitred"


def maitred(
    *arguments: str, environment: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MAITRED), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )


def maitred_json(*arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    done = maitred(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
