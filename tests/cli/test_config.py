from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from maitred.config import describe
from tests.cli.running import maitred, maitred_json
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

ALICE = cheaply("alice's")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("MAITRED_")}


def written(directory: Path, text: str) -> str:
    file = directory / "maitred.toml"
    file.write_text(text)
    return str(file)


def test_list_names_every_setting_with_default_and_reason() -> None:
    shown = maitred("config", "list").stdout
    rows = maitred_json("config", "list")
    assert [row["name"] for row in rows] == [row.name for row in describe()]
    for row in rows:
        assert list(row) == ["name", "type", "default", "required", "advanced", "reason"]
        assert row["name"] in shown
    words = " ".join(shown.split())
    assert all(row["reason"] in words for row in rows)
    assert "port = 4747  (int)" in shown
    assert "tls.key (no default)  (path)" in shown


def test_check_says_ok(tmp_path: Path) -> None:
    file = written(tmp_path, f'port = 1\n[users.alice]\nsecret = "{ALICE}"')
    # What the environment says is not the file's fault.
    done = maitred("config", "check", file, environment=CLEAN | {"MAITRED_NONSENSE": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file} is OK.\n", "")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("port = 65536", "invalid-setting", "a whole number from 0 to 65,535"),
        ("prot = 1", "unknown-setting", "Did you mean 'port'?"),
        ("port =", "invalid-setting", "line 1"),
        ("host = '0.0.0.0'", "invalid-setting", "--public-without-auth"),
        ("users_file = 'missing.toml'", "invalid-setting", "cannot be read"),
    ],
)
def test_check_says_what_is_wrong(tmp_path: Path, text: str, code: str, said: str) -> None:
    refused = maitred("config", "check", written(tmp_path, text))
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert f"[{code}]" in refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_check_of_a_file_that_is_not_there() -> None:
    refused = maitred("config", "check", "/nowhere/at.all")
    assert refused.returncode == 2
    assert "/nowhere/at.all cannot be read: No such file or directory" in refused.stderr


def test_show_says_where_each_came_from_and_hides_secrets(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f"port = 1\ndata = 'd'\n[users.alice]\nsecret = \"{ALICE}\"\npermissions.shop = ['work']",
    )
    environment = CLEAN | {"MAITRED_PORT": "2", "MAITRED_LOG__LEVEL": "debug"}
    done = maitred("config", "show", "--config", file, "--json", environment=environment)
    rows = {row["setting"]: (row["value"], row["from"]) for row in json.loads(done.stdout)}
    assert rows["port"] == (2, "the variable MAITRED_PORT")
    assert rows["log.level"] == ("debug", "the variable MAITRED_LOG__LEVEL")
    assert rows["data"] == (f"{tmp_path}/d", f"the file {file}")
    assert rows["host"] == ("127.0.0.1", "default")
    assert rows["tls.key"] == (None, "default")
    assert rows["users.alice.secret"] == ("********", f"the file {file}")
    assert rows["users.alice.permissions"] == ({"shop": ["work"]}, f"the file {file}")
    shown = maitred("config", "show", "--config", file, environment=environment).stdout
    assert shown.splitlines()[0].split() == ["setting", "value", "from"]
    assert ALICE not in shown + done.stdout
    assert "********" in shown


def test_show_without_anything_is_the_defaults() -> None:
    done = maitred("config", "show", "--json", environment=CLEAN)
    assert {row["from"] for row in json.loads(done.stdout)} == {"default"}


def test_a_misspelt_part_gets_a_hint() -> None:
    refused = maitred("config", "shwo")
    assert refused.returncode == 2
    assert "Did you mean 'show'?" in refused.stderr
