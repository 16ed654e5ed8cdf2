"""DataStax's driver and cqlsh, as PyPI has them, connect with their defaults.

They ask for version 5 first and go down to 4, and read more of the schema than ScyllaDB's driver
does: a table that was missing there kept both out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maitred.security.secrets import hash_secret
from tests.node.nodes import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM_SECONDS = 100.0
"""For a program that takes one second on a machine with nothing else to do."""

DRIVER = """
import json, sys
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster

cluster = Cluster(
    [sys.argv[1]], port=int(sys.argv[2]), auth_provider=PlainTextAuthProvider(*sys.argv[3:])
)
session = cluster.connect()
refusals = {}
for statement in ("SELECT * FROM shop.orders", "INSERT INTO a.b (c) VALUES (1)", "USE shop"):
    try:
        session.execute(statement)
    except Exception as problem:
        refusals[statement] = type(problem).__name__
try:
    session.prepare("SELECT * FROM system.local WHERE key = ?")
except Exception as problem:
    refusals["PREPARE"] = type(problem).__name__
(local,) = session.execute("SELECT * FROM system.local")
print(json.dumps({
    "version": cluster.protocol_version,
    "cluster": local.cluster_name,
    "tables": sorted(cluster.metadata.keyspaces["system"].tables),
    "refusals": refusals,
}))
cluster.shutdown()
"""


def program(environment: str, name: str) -> Path:
    found = Path(sys.prefix) / environment / "bin" / name
    if not found.exists():
        pytest.skip(f"NO {environment} HERE: it was not tried whether it connects")
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    config = tmp_path_factory.mktemp("stock") / "maitred.toml"
    config.write_text(
        f"[users.ada]\nsecret = {hash_secret('analytical')!r}\n"
        '[users.ada.permissions]\n"*" = ["query"]\n'
    )
    config.chmod(0o600)
    with running_node("--config", str(config), shards=2) as node:
        yield node


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    )


def test_datastax_driver_connects_with_its_defaults(node: RunningNode) -> None:
    python = program("cassandra-driver", "python")
    done = run(python, "-c", DRIVER, node.host, str(node.port), "ada", "analytical")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "version": 4,
        "cluster": "maitred",
        "tables": ["local", "peers"],
        "refusals": {
            "SELECT * FROM shop.orders": "InvalidRequest",
            "INSERT INTO a.b (c) VALUES (1)": "SyntaxException",
            "USE shop": "SyntaxException",
            "PREPARE": "SyntaxException",
        },
    }


def test_cqlsh_connects_with_its_defaults_shows_tables_and_refusals(
    node: RunningNode, tmp_path: Path
) -> None:
    statements = tmp_path / "statements.cql"
    statements.write_text(
        "SELECT cluster_name, partitioner FROM system.local;\n"
        "SELECT * FROM shop.orders;\n"
        "DROP KEYSPACE shop;\n"
        "SELECT key FROM system.local;\n"  # the connection has survived the refusals
    )
    cqlsh = program("cqlsh", "cqlsh")
    history = f"--cqlshrc={tmp_path / 'cqlshrc'}"
    done = run(
        cqlsh, history, "-u", "ada", "-p", "analytical", "-f", statements,
        node.host, str(node.port),
    )  # fmt: skip
    assert "maitred | org.apache.cassandra.dht.Murmur3Partitioner" in done.stdout, done.stderr
    assert "local" in done.stdout.splitlines()[-3], done.stdout
    assert 'message="Table shop.orders does not exist."' in done.stderr
    assert "SyntaxException: The statement 'DROP KEYSPACE shop;' is not understood." in done.stderr


def test_cqlsh_is_told_that_its_secret_is_wrong(node: RunningNode, tmp_path: Path) -> None:
    cqlsh = program("cqlsh", "cqlsh")
    done = run(
        cqlsh, f"--cqlshrc={tmp_path / 'cqlshrc'}", "-u", "ada", "-p", "wrong", "-e", "SHOW HOST",
        node.host, str(node.port),
    )  # fmt: skip
    assert done.returncode != 0
    assert "secret is wrong" in done.stderr
