"""`maitred admin reload`: what a running node reads again, against real processes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import trustme
from click.testing import CliRunner, Result

from maitred.cli.main import cli
from maitred.errors import MaitredError
from maitred.security.tls import client_context
from tests.node.nodes import RunningNode, running_node, wait_until
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = ("shard 0", "shard 1", "gateway")


def users(**secrets: str) -> str:
    everything, little = '"*" = ["admin"]', 'shop = ["query"]'
    return "".join(
        f'[users.{name}]\nsecret = "{cheaply(secret)}"\n'
        f"permissions = {{ {everything if name == 'alice' else little} }}\n"
        for name, secret in secrets.items()
    )


class Kept:
    """A node's files, and ways to reach the node."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._authority = trustme.CA()
        self.ca, self.settings = str(place / "ca.pem"), place / "maitred.toml"
        self._authority.cert_pem.write_to_path(self.ca)
        self.trusting = client_context(self.ca)
        self.issue()
        self.write(users(alice="a", bob="b"))

    def issue(self) -> bytes:
        made = self._authority.issue_cert("localhost", "127.0.0.1")
        made.private_key_pem.write_to_path(str(self._place / "key.pem"))
        made.cert_chain_pems[0].write_to_path(str(self._place / "cert.pem"))
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())

    def write(self, text: str) -> None:
        tls = '[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n'
        new = self.settings.with_suffix(".new")
        new.write_text(tls + text)
        new.rename(self.settings)

    def run(self, node: RunningNode, *arguments: str, who: str = "alice:a") -> Result:
        url = node.url.replace("://", f"://{who}@") + f"?ca={self.ca}"
        command = ["admin", "reload", *arguments, "--timeout", "20", "--url", url]
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        if not isinstance(done.exception, SystemExit | MaitredError | click.Abort | None):
            raise done.exception
        return done

    def reloaded(self, node: RunningNode) -> dict[tuple[str, str], str]:
        """State by process and part."""
        rows: list[dict[str, Any]] = json.loads(self.run(node, "--json").stdout)["reloaded"]
        return {(row["process"], row["part"]): row["state"] for row in rows}

    def caller(self, node: RunningNode) -> http.client.HTTPSConnection:
        place = urlsplit(node.ready["http"])
        return http.client.HTTPSConnection(
            str(place.hostname), place.port, timeout=60, context=self.trusting
        )

    def shown(self, port: int) -> bytes:
        """The certificate that a listener shows to a new connection."""
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            self.trusting.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            found = wrapped.getpeercert(binary_form=True)
        assert found
        return found


def status(caller: http.client.HTTPSConnection, user: str, secret: str) -> int:
    pair = b64encode(f"{user}:{secret}".encode()).decode()
    caller.request("GET", "/v1/shop/queues/none", headers={"Authorization": f"Basic {pair}"})
    answer = caller.getresponse()
    answer.read()
    return answer.status


def test_a_node_reads_users_and_certificates_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    with running_node("--config", str(kept.settings), gateway=True) as node:
        ports = [*(one.port for one in node.shards), urlsplit(node.ready["http"]).port or 0]
        parts = {("node", "settings")} | {
            (process, part) for process in PROCESSES for part in ("users", "certificate")
        }
        assert kept.reloaded(node) == dict.fromkeys(parts, "unchanged")
        old = kept.caller(node)
        assert status(old, "bob", "b") == 403
        first = kept.shown(ports[0])

        # Somebody is gone, somebody is new, and so is the certificate, everywhere.
        kept.write(users(alice="a", carol="c"))
        second = kept.issue()
        done = kept.run(node)
        assert done.exit_code == 0, done.output
        for process in PROCESSES:
            assert done.output.count(process) == 2
        assert done.output.count("changed") == 7
        assert "unchanged" not in done.output
        assert {kept.shown(port) for port in ports} == {second} != {first}
        # A connection of before goes on, and those who are gone are out there as well.
        assert [status(old, "bob", "b"), status(old, "carol", "c")] == [401, 403]
        old.close()

        # What cannot be used changes nothing, and each part says so.
        kept.write(users(alice="a", carol="c").replace("scrypt", "md5"))
        (tmp_path / "key.pem").write_text("nonsense")
        done = kept.run(node)
        assert done.exit_code == 1
        assert done.output.count("failed") == 1 + len(PROCESSES)
        assert "users.alice.secret" in done.output
        assert "key.pem" in done.output
        assert "Traceback" not in done.output
        assert {kept.shown(port) for port in ports} == {second}
        assert len(node.wait_for_event("settings not read again; the old state stays")) == 1
        found = node.wait_for_event("certificate not read again; the old state stays", 3)
        assert {entry["level"] for entry in found} == {"error"}
        caller = kept.caller(node)
        assert status(caller, "carol", "c") == 403

        # Without a word, it reads what has changed by itself; what needs a restart is told.
        kept.issue()
        kept.write("[limits]\nin_flight = 5\n" + users(alice="a", dora="d"))
        wait_until(lambda: status(caller, "dora", "d") == 403, "the new settings count")
        wait_until(lambda: status(caller, "carol", "c") == 401, "the old ones do not")
        caller.close()
        told = node.wait_for_event("settings read again; some need a restart")
        assert "limits" in told[0]["reason"]
        wait_until(lambda: kept.shown(ports[2]) != second, "the new certificate is shown")

        # Not for everybody.
        refused = kept.run(node, who="dora:d")
        assert isinstance(refused.exception, MaitredError)
        assert refused.exception.code == "permission-denied"
