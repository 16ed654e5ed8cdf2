"""docs/settings.md and docs/settings-advanced.md list every setting as the schema has it, and what
they show is accepted.

    python -m tests.test_settings_document

writes the tables of both pages anew.
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

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "settings.md"
ADVANCED_PAGE = DOCS / "settings-advanced.md"
READ_BY_USERS_MAX = 60
"""Settings on the page that users read: what fits into an hour's reading."""
COMMAND = "python -m tests.test_settings_document"
BEGIN = f"<!-- The tables below are written by a program: {COMMAND} -->\n"
GROUPS = {
    "": "The node",
    "queues": "queues: how tasks are stored and dispatched",
    "namespaces": "namespaces: quotas for all queues of a namespace together",
    "cluster": "cluster: nodes that share a database",
    "gateway": "gateway: the HTTP API and its queries",
    "monitor": "monitor: the port for health, readiness and metrics",
    "telemetry": "telemetry: traces and metrics by OpenTelemetry",
    "limits": "limits: what one shard accepts from its connections",
    "tls": "tls: files in PEM form; without this group there is no TLS",
    "worker_addresses": "Addresses of workers",
    "users": "users: who may log in, and their permissions",
    "tokens": "tokens: API tokens",
    "jwt": "jwt: JSON Web Tokens; without this group the node accepts none",
    "log": "log: what is written to standard error",
    "audit": "audit: the audit log",
    "restarts": "restarts: how the node restarts a shard that died",
}
KIB, MIB = 2**10, 2**20


def tables(*, advanced: bool) -> str:
    """Every setting of a node of that kind, group by group, and those of a client."""
    groups: dict[str, list[Row]] = {}
    for row in rows(settings.Node):
        if row.advanced == advanced:
            group = row.name.partition(".")[0] if "." in row.name else ""
            groups.setdefault(group, []).append(row)
    parts = [f"## {GROUPS[group]}\n\n{_table(found)}" for group, found in groups.items()]
    client = [row for row in rows(settings.ClientSettings) if row.advanced == advanced]
    parts.append(f"## A client\n\n{_table(client)}")
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


def page(path: Path = PAGE) -> tuple[str, str]:
    """What people wrote, and what the program wrote."""
    people, marker, written = path.read_text().partition(BEGIN)
    assert marker, f"{path.name} has lost the line {BEGIN!r}"
    return people + marker, written.removeprefix("\n")


def test_the_pages_have_every_setting_as_the_schema_has_it() -> None:
    for path, advanced in ((PAGE, False), (ADVANCED_PAGE, True)):
        stale = f"docs/{path.name} is not up to date; run: {COMMAND}"
        assert page(path)[1] == tables(advanced=advanced), stale


def test_the_page_that_users_read_is_short() -> None:
    assert len(re.findall(r"^\| `", page()[1], re.MULTILINE)) <= READ_BY_USERS_MAX


def test_the_list_of_the_command_names_the_same_settings() -> None:
    listed = json.loads(maitred("config", "list", "--json").stdout)
    for setting in listed:
        path = ADVANCED_PAGE if setting["advanced"] else PAGE
        assert f"| `{setting['name']}` |" in page(path)[1]


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
    PAGE.write_text(page()[0] + "\n" + tables(advanced=False))
    ADVANCED_PAGE.write_text(page(ADVANCED_PAGE)[0] + "\n" + tables(advanced=True))
