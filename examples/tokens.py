"""An API token that may do less than its user, how it ends, and what the audit log says of it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import maitred
from maitred.security.secrets import hash_secret  # as `maitred hash-secret` does

MAITRED = [sys.executable, "-m", "maitred"]


def admin(url: str, *command: str) -> str:
    """Run `maitred admin token ...` as the operator; the secret is in no list of processes."""
    return subprocess.run(  # noqa: S603 - our own
        [*MAITRED, "admin", "token", *command],
        env={**os.environ, "MAITRED_URL": url},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def outcome(client: maitred.Client, namespace: str) -> str:
    try:
        return client.echo(namespace, "orders", b"hello", timeout=0.3).payload.decode()
    except maitred.MaitredError as problem:
        return problem.code


def story(host: str, audit: Path) -> None:
    operator = f"maitred://operator:lamp@{host}"
    narrow = ("--permission", "shop=query")
    token = admin(operator, "create", "--user", "ci", "--expires", "1h", *narrow).strip()
    with maitred.connect(f"maitred://{host}", token=token) as program:
        print("in shop:", outcome(program, "shop"))
        print("in mail, which the user may and the token may not:", outcome(program, "mail"))
        (known,) = json.loads(admin(operator, "list", "--json"))["tokens"]
        admin(operator, "revoke", known["id"])
        while outcome(program, "shop") in {"hello", "deadline-exceeded"}:
            time.sleep(0.02)
    try:
        maitred.connect(f"maitred://{host}", token=token).wait()
    except maitred.MaitredError as problem:
        print("after it was revoked:", problem.code)
    while '"revoke token"' not in (text := audit.read_text()):
        time.sleep(0.02)  # a thread writes the log
    for record in map(json.loads, text.splitlines()):
        if record["action"].endswith("token"):
            print("audit log:", record["user"], record["action"])


with tempfile.TemporaryDirectory() as directory:
    users = Path(directory, "users.toml")
    users.touch(mode=0o600)
    users.write_text(f"""
        [users]
        operator = {{ secret = "{hash_secret("lamp")}", permissions = {{ "*" = ["admin"] }} }}
        ci = {{ secret = "{hash_secret("x")}", permissions = {{ "*" = ["query"] }} }}
        """)
    up = [*MAITRED, "up", "--json", "--shards", "1", "--port", "0", "--log-level", "error"]
    up += ["--data", f"{directory}/data", "--users-file", str(users)]
    with subprocess.Popen(up, stdout=subprocess.PIPE, text=True) as node:  # noqa: S603 - our own
        try:
            assert node.stdout  # noqa: S101
            found = json.loads(node.stdout.readline())["url"].removeprefix("maitred://")
            story(found, Path(directory, "data", "audit", "shard-0.jsonl"))
        finally:
            node.terminate()

# Prints:
# | in shop: hello
# | in mail, which the user may and the token may not: permission-denied
# | after it was revoked: invalid-token
# | audit log: operator create token
# | audit log: operator revoke token
