"""Two users, what they may not do, and a secret that is changed while its user is connected."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import maitred
from maitred.security.secrets import hash_secret  # as `maitred hash-secret` does


def write_users(file: Path, alice: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"""
        [users]
        alice = {{ secret = "{hash_secret(alice)}", permissions = {{ shop = ["query"] }} }}
        bob = {{ secret = "{hash_secret("builder")}", permissions = {{ mail = ["query"] }} }}
        """)
    new.replace(file)  # so the node never sees half a file


def outcome(client: maitred.Client, namespace: str) -> str:
    try:
        return client.echo(namespace, "orders", b"hello", timeout=0.3).payload.decode()
    except maitred.MaitredError as problem:
        return problem.code


def story(host: str, file: Path) -> None:
    with maitred.connect(f"maitred://bob:builder@{host}") as bob:
        print("bob in mail:", outcome(bob, "mail"))
        print("bob in shop:", outcome(bob, "shop"))
    with maitred.connect(f"maitred://alice:rabbit@{host}") as alice:
        print("alice in shop:", outcome(alice, "shop"))
        write_users(file, alice="queen")  # noticed within a second or so
        while outcome(alice, "shop") in {"hello", "deadline-exceeded"}:
            time.sleep(0.02)
    try:
        maitred.connect(f"maitred://alice:rabbit@{host}").wait()
    except maitred.MaitredError as problem:
        print("alice, with her old secret:", problem.code)
    with maitred.connect(f"maitred://alice:queen@{host}") as alice:
        print("alice, with her new one:", outcome(alice, "shop"))


with tempfile.TemporaryDirectory() as directory:
    users = Path(directory, "users.toml")
    write_users(users, alice="rabbit")
    up = [sys.executable, "-m", "maitred", "up", "--json", "--shards", "1", "--port", "0"]
    up += ["--data", f"{directory}/data", "--users-file", str(users), "--log-level", "error"]
    with subprocess.Popen(up, stdout=subprocess.PIPE, text=True) as node:  # noqa: S603 - our own
        try:
            assert node.stdout  # noqa: S101
            story(json.loads(node.stdout.readline())["url"].removeprefix("maitred://"), users)
        finally:
            node.terminate()

# Prints:
# | bob in mail: hello
# | bob in shop: permission-denied
# | alice in shop: hello
# | alice, with her old secret: unauthenticated
# | alice, with her new one: hello
