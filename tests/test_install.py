"""What an install brings along, with a C compiler and without one.

Everything is built in a copy: a build writes beside its sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
HEADER = Path(sysconfig.get_path("include")) / "Python.h"
IN_C = Path("maitred/routing/_tokens.abi3.so")

WHAT_RUNS = (
    "import maitred; from maitred.routing import sharding, tokens\n"
    "print(maitred.__file__, tokens.token is tokens.token_in_python)\n"
    "print(tokens.token('café:orders:1'.encode()), sharding(4)('café:orders:1'.encode()))\n"
)
ITS_TOKEN_AND_SHARD = ["-6508233456756837190", "3"]
"""As docs/protocol.md gives them to whoever checks a driver of his own."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    without = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for folder in ("src", "studies"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=without)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_without_a_compiler_the_install_goes_on_and_python_is_used(
    copy: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    said = run(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"),
        *("--no-deps", "--no-build-isolation", "--no-compile", "--target", installed, copy),
        cwd=tmp_path,
        CC="/bin/false",
    )
    assert said == ""
    assert not (installed / IN_C).exists()
    where, in_python, *numbers = run(
        "-c", WHAT_RUNS, cwd=tmp_path, PYTHONPATH=str(installed)
    ).split()
    assert Path(where) == installed / "maitred" / "__init__.py"
    assert (in_python, numbers) == ("True", ITS_TOKEN_AND_SHARD)


@pytest.mark.skipif(
    shutil.which(COMPILER) is None or not HEADER.exists(),
    reason=f"this machine can't build C for Python: no {COMPILER}, or no {HEADER}",
)
def test_with_a_compiler_a_wheel_has_the_c_and_every_file_of_the_package(
    copy: Path, tmp_path: Path
) -> None:
    sources = files_of(copy / "src") - {Path("maitred/routing/_tokens.c")}
    program = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    run("-c", program, cwd=copy)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    installed = tmp_path / "installed"
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    files = {path for path in files_of(installed) if not path.parts[0].endswith(".dist-info")}
    assert files == {*sources, IN_C}
    where, in_python, *numbers = run(
        "-c", WHAT_RUNS, cwd=tmp_path, PYTHONPATH=str(installed)
    ).split()
    assert Path(where) == installed / "maitred" / "__init__.py"
    assert (in_python, numbers) == ("False", ITS_TOKEN_AND_SHARD)
