"""`maitred up`, as a person and as a script see it. tests/node has what nodes do after that."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from maitred.node.exits import MEANINGS
from maitred.security.secrets import hash_secret
from tests.cli.running import MAITRED, maitred, running_afresh
from tests.node.nodes import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST_WORDS = "Ctrl-C stops it"


def told(*arguments: str) -> tuple[list[str], int, str]:
    """What it prints until it is up; then Ctrl-C, its exit status, and the log."""
    with running_afresh("up", *arguments) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith(LAST_WORDS)):
            line = process.stdout.readline()
            assert line, f"it ended: {process.communicate()[1]}"
            lines.append(line.rstrip("\n"))
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert rest == ""
    return lines, process.returncode, errors


def test_what_a_person_reads(tmp_path: Path) -> None:
    lines, status, log = told("--port", "0", "--shards", "2", "--data", str(tmp_path))
    assert status == 0
    first = re.fullmatch(r"maitred is up: 2 shards on 127\.0\.0\.1:(\d+)", lines[0])
    assert first is not None
    port = int(first[1])
    text = "\n".join(lines)
    assert re.search(rf"^ +0 +\d+  127\.0\.0\.1:{port + 1}$", text, re.MULTILINE)
    assert re.search(rf"^ +1 +\d+  127\.0\.0\.1:{port + 2}$", text, re.MULTILINE)
    assert f"data     {tmp_path}" in text
    assert "auth     none: every caller may do anything" in text
    assert "TLS      off" in text
    # The command as it can be typed here, on the path or not.
    assert f"maitred status --url maitred://127.0.0.1:{port}" in text
    assert f'  app = App("shop", node="maitred://127.0.0.1:{port}")' in text
    for line in log.splitlines():
        json.loads(line)  # the log, and nothing else


def test_the_lines_of_python_that_are_shown_work(tmp_path: Path) -> None:
    with running_afresh("up", "--port", "0", "--shards", "1", "--data", str(tmp_path)) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith(LAST_WORDS)):
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended"
        start = lines.index("  from maitred import App\n")
        program = "".join(line[2:] for line in lines[start : start + 5])
        python = str(MAITRED.parent / "python")
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "shop/greetings/0/" in done.stdout
        shown = ("maitred status", "maitred ping", "maitred admin")
        commands = [line.split() for line in lines if any(one in line for one in shown)]
        assert [command[1] for command in commands] == ["status", "ping", "admin"]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0, done.stderr


def test_file_environment_and_command_line_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "maitred.toml"
    file.write_text(
        'shards = 3\nport = 1\ndata = "below"\ndrain_seconds = 7\n[log]\nlevel = "debug"\n'
    )
    environment = {"MAITRED_PORT": "0", "MAITRED_DRAIN_SECONDS": "6", "MAITRED_SHARDS": "2"}
    with running_node(
        *("--config", str(file), "--shards", "1", "--set", "limits.connections=77"),
        shards=0,
        port=None,
        data=None,
        environment=environment,
    ) as node:
        assert len(node.shards) == 1  # the command line
        assert node.port > 1  # the environment
        assert node.ready["data"] == str(tmp_path / "below")  # the file, beside itself
        assert (tmp_path / "below" / "node.json").exists()
        assert node.stop() == 0
        (stopping,) = node.events("stopping; finishing requests in flight")
        assert stopping["drain_seconds"] == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "banana"), "port is 'banana' (from the command line)"),
        (("--port", "70000"), "a whole number from 0 to 65,535"),
        (("--port", "65535", "--shards", "8"), "ends beyond 65,535"),
        (("--shards", "0"), "from 1 to 1,024"),
        (("--host", "0.0.0.0"), "public_without_auth"),  # noqa: S104 - refused
        (("--set", "limits.conections=5"), "Did you mean 'limits.connections'?"),
        (("--set", "nonsense"), "Write --set limits.connections=500."),
        (("--port", "5000", "--set", "port=5001"), "port is given twice"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
        (("--log-level", "loud"), "one of debug, info, warning, error"),
        (("--prot", "1"), "Did you mean"),
    ],
)
def test_bad_input_is_exit_status_2(arguments: tuple[str, ...], said: str) -> None:
    refused = maitred("up", *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert refused.stdout == ""
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "192.0.2.1", "--public-without-auth"), "no address of this machine"),
        (("--host", "nowhere.invalid", "--public-without-auth"), "has no address"),
        (("--data", "/dev/null/x"), "Not a directory"),
        (("--data", "/proc/maitred"), "cannot be used"),
    ],
)
def test_what_cannot_be_had_here_is_exit_status_1(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    if "--data" not in arguments:
        arguments += ("--data", str(tmp_path))
    refused = maitred("up", "--port", "0", *arguments)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert "[cannot-start]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_full_disk_is_exit_status_1(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    refused = subprocess.run(
        [str(MAITRED), "up", "--port", "0", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=no_room,
        check=False,
    )
    assert refused.returncode == 1
    assert "cannot be used: File too large." in refused.stderr


def test_nobody_reading_is_no_reason_to_stop(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("NO /dev/full HERE: a full disk behind standard output was not tried")
    program = f'exec "{MAITRED}" up --port 0 --shards 1 --data "{tmp_path}" > /dev/full'
    with subprocess.Popen(
        ["sh", "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            events: list[str] = []
            while "standard output cannot be written" not in events:
                line = process.stderr.readline()
                assert line, f"it ended after {events}"
                events.append(json.loads(line)["event"])
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=30)[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    assert "stopped; everything is finished" in errors


@pytest.fixture
def node_with_users(tmp_path: Path) -> Iterator[RunningNode]:
    users = {"alice": {"secret": hash_secret("open sesame"), "permissions": {"*": ["admin"]}}}
    with running_node(
        data=tmp_path, shards=1, environment={"MAITRED_USERS": json.dumps(users)}
    ) as node:
        yield node


def test_users_reach_the_shards_and_are_asked_for(node_with_users: RunningNode) -> None:
    node = node_with_users
    assert node.ready["auth"] is True
    refused = maitred("status", "--url", node.url)
    assert refused.returncode == 1
    assert "[unauthenticated]" in refused.stderr
    url = node.url.replace("://", "://alice:open%20sesame@")
    told_to_her = maitred("status", environment={**os.environ, "MAITRED_URL": url})
    assert told_to_her.returncode == 0, told_to_her.stderr
    assert "sesame" not in str(node.errors)


def test_tls_from_files_to_status(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    file = tmp_path / "maitred.toml"
    file.write_text('[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n')
    with running_node("--config", str(file)) as node:
        assert node.ready["tls"] is True
        assert node.url.startswith("maitreds://")
        done = maitred("status", "--url", f"{node.url}?ca={tmp_path / 'ca.pem'}")
        assert done.returncode == 0, done.stderr
        untrusted = maitred("status", "--url", node.url, "--timeout", "1")
        assert untrusted.returncode == 1
        assert "Traceback" not in untrusted.stderr


def test_help_names_every_exit_status() -> None:
    shown = maitred("up", "--help").stdout
    for status, meaning in MEANINGS:
        assert re.search(rf"^ +{status} +{re.escape(meaning)}$", shown, re.MULTILINE), shown
