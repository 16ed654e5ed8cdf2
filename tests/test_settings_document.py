"""docs/settings.md lists every setting as the schema has it, and what it shows is accepted.

    python -m tests.test_settings_document

writes the tables of the page anew.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from maitred import settings
from maitred.config import load
from maitred.schema import rows
from tests.cli.running import MAITRED, maitred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.schema import Row

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
COMMAND = "python -m tests.test_settings_document"
BEGIN = f"<!-- The tables below are written by a program: {COMMAND} -->\n"
GROUPS = {
    "": "The node",
    "queues": "queues: how tasks are kept and handed out",
    "namespaces": "namespaces: what the queues of one may take together",
    "gateway": "gateway: the HTTP door, and how its queries are asked",
    "limits": "limits: what one shard takes from its connections",
    "tls": "tls: files in PEM form; without this group there is no TLS",
    "worker_addresses": "Addresses of workers",
    "users": "users: who may come in, and what for",
    "tokens": "tokens: API tokens",
    "jwt": "jwt: JSON Web Tokens; without this group there are none",
    "log": "log: what is written to standard error",
    "audit": "audit: who did what",
    "restarts": "restarts: when a shard dies",
}
KIB, MIB = 2**10, 2**20


def tables() -> str:
    """Every setting of a node, group by group, and those of a client."""
    groups: dict[str, list[Row]] = {}
    for row in rows(settings.Node):
        group = row.name.partition(".")[0] if "." in row.name else ""
        groups.setdefault(group, []).append(row)
    parts = [f"## {GROUPS[group]}\n\n{_table(found)}" for group, found in groups.items()]
    parts.append(f"## A client\n\n{_table(rows(settings.Client))}")
    return "\n".join(parts)


def _table(found: Sequence[Row]) -> str:
    lines = ["| setting | what it can be | default | why |", "|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {_words(row)} | {_default(row)} | {row.reason.replace('|', '&#124;')} |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def _words(row: Row) -> str:
    return "a path" if row.kind.is_location else row.kind.words().replace("|", "&#124;")


def _default(row: Row) -> str:
    value = row.default
    if row.required:
        return "needed"
    if value is None:
        return "none"
    if row.name.endswith("_bytes") and isinstance(value, int):
        unit, name = (MIB, "MiB") if value >= MIB else (KIB, "KiB")
        return f"`{value}` ({value // unit} {name})"
    return f"`{json.dumps(value)}`"


def page() -> tuple[str, str]:
    """What people wrote, and what the program wrote."""
    people, marker, written = PAGE.read_text().partition(BEGIN)
    assert marker, f"{PAGE.name} has lost the line {BEGIN!r}"
    return people + marker, written.removeprefix("\n")


def test_the_page_has_every_setting_as_the_schema_has_it() -> None:
    assert page()[1] == tables(), f"docs/settings.md is not up to date; run: {COMMAND}"


def test_the_list_of_the_command_names_the_same_settings() -> None:
    listed = json.loads(maitred("config", "list", "--json").stdout)
    for setting in listed:
        assert f"| `{setting['name']}` |" in page()[1]


def test_what_the_page_writes_into_files_is_accepted() -> None:
    found = re.findall(r"```toml\n(.*?)```", page()[0], re.DOTALL)
    assert found
    for block in found:
        load(None, {}, tomllib.loads(block))


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(re.findall(r"```toml\n(.*?)```", page()[0], re.DOTALL)[0])
    shown = re.findall(
        r"```console\n\$ ([^\n]*?)maitred (config [^\n]*)\n(.*?)```", page()[0], re.DOTALL
    )
    assert shown
    for variables, arguments, output in shown:
        done = subprocess.run(
            [MAITRED, *shlex.split(arguments)],
            env=dict(one.split("=") for one in variables.split()),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for part in output.split("...\n"):  # what is left out
            assert part in done.stdout


def test_the_options_of_up_that_the_page_names_are_all_there_are() -> None:
    named = set(re.findall(r"--[a-z-]+", page()[0]))
    there = set(re.findall(r"^  (--[a-z-]+)", maitred("up", "--help").stdout, re.MULTILINE))
    assert there - {"--json", "--example", "--accept-loss"} == named  # these set nothing


if __name__ == "__main__":
    PAGE.write_text(page()[0] + "\n" + tables())
