"""`maitred admin token`, and how commands show a token: against a real node with a gateway."""

from __future__ import annotations

import http.client
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from maitred.cli.admin_token import id_given, permissions_of, seconds_of
from maitred.errors import InvalidArgument
from tests.cli.running import maitred
from tests.node.nodes import RunningNode, running_node, wait_until
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

USERS = f"""
[users.alice]
secret = "{cheaply("wonder")}"
permissions = {{ "*" = ["admin"] }}

[users.bob]
secret = "{cheaply("builder")}"
permissions = {{ "ping" = ["query"] }}
"""


def asked(
    node: RunningNode, *arguments: str, who: str = "alice:wonder@", **variables: str
) -> subprocess.CompletedProcess[str]:
    url = node.url.replace("://", f"://{who}")
    return maitred(*arguments, environment={**os.environ, "MAITRED_URL": url, **variables})


def status_over_http(node: RunningNode, token: str) -> int:
    place = urlsplit(node.ready["http"])
    with closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)) as caller:
        # Which bob may not see.
        headers = {"Authorization": f"Bearer {token}"}
        caller.request("GET", "/v1/shop/queues/orders", headers=headers)
        return caller.getresponse().status


def test_the_life_of_a_token_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(USERS)
    with running_node("--users-file", str(tmp_path / "users.toml"), gateway=True) as node:
        made = asked(node, "admin", "token", "create", "--user", "bob", "--name", "ci")
        assert made.returncode == 0, made.stderr
        token = made.stdout.strip()
        number = token.split("_")[1]
        assert made.stdout == f"{token}\n", "a script takes all of standard output"
        assert f"maitred admin token revoke {number}" in made.stderr
        assert token not in made.stderr

        listed = json.loads(asked(node, "admin", "token", "list", "--json").stdout)["tokens"]
        (row,) = listed
        assert (row["id"], row["user"], row["name"]) == (number, "bob", "ci")
        assert row["created_by"] == "alice"
        assert token.rpartition("_")[2] not in str(listed)

        done = asked(node, "ping", "--count", "1", who="", MAITRED_TOKEN=token)
        assert done.returncode == 0, done.stderr
        (tmp_path / "token").write_text(f"{token}\n")
        file = str(tmp_path / "token")
        refused = asked(node, "admin", "token", "list", "--token-file", file, who="")
        assert "[permission-denied]" in refused.stderr
        assert status_over_http(node, token) == 403
        for one in node.data.iterdir():
            content = one.read_bytes() if one.is_file() else b""
            assert token.rpartition("_")[2].encode() not in content

        assert asked(node, "admin", "token", "revoke", number).returncode == 0
        wait_until(lambda: status_over_http(node, token) == 401, "it is refused")
        assert token not in str(node.errors)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("12h", 43_200), ("30d", 2_592_000), ("1w", 604_800)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "-1d", "30", "d", "1y", "1.5h", "٣d", "9999999999d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidArgument):
        seconds_of(text)


def test_permissions() -> None:
    assert permissions_of(()) is None
    assert permissions_of(("shop=query, produce", "shop=work", "*=query")) == {
        "shop": ["query", "produce", "work"],
        "*": ["query"],
    }
    for wrong in ("shop", "shop=", "=query", "shop=fly", "shop=query,"):
        with pytest.raises(InvalidArgument):
            permissions_of((wrong,))


def test_a_whole_token_is_no_argument() -> None:
    with pytest.raises(InvalidArgument, match="seen by others") as refused:
        id_given("mtd_" + "a" * 16 + "_" + "b" * 64)
    assert refused.value.remedy == f"Revoke it by its id: maitred admin token revoke {'a' * 16}"
