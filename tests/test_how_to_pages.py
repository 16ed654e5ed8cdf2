"""docs/testing-handlers.md runs as it stands, and docs/coming-from-celery.md names what exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

import maitred
from maitred.cli.main import cli

DOCS = Path(__file__).parent.parent / "docs"
TESTING = (DOCS / "testing-handlers.md").read_text()
CELERY = (DOCS / "coming-from-celery.md").read_text()
FILES = ("shop.py", "test_functions.py", "conftest.py", "test_tasks.py")


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)
    for name, block in zip(FILES, blocks, strict=True):
        (tmp_path / name).write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAITRED_", "PYTEST_"))
        }
        | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_commands_settings_and_names_of_the_celery_page_exist() -> None:
    commands = re.findall(r"`maitred ([^`]+)`", CELERY)
    assert len(commands) >= 5
    for command in commands:
        words = [word for word in command.split() if "/" not in word and ":" not in word]
        options = [word for word in words if word.startswith("--")]
        names = words[: words.index(options[0])] if options else words
        described = CliRunner().invoke(cli, [*names, "--help"])
        assert described.exit_code == 0, command
        assert all(option in described.output for option in options), command
    settings = re.findall(r"the setting `([a-z_.]+)` of a queue", CELERY)
    assert settings
    listed = CliRunner().invoke(cli, ["config", "list", "--json"])
    known = {setting["name"] for setting in json.loads(listed.output)}
    for setting in settings:
        assert f"queues.<name>.{setting}" in known
    for name in re.findall(r"`maitred\.([a-z_]+)", CELERY):
        assert hasattr(maitred, name)
