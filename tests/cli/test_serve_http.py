"""`maitred serve-http`: bad input, and the whole way from a query to a server and back."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import maitred
from maitred.errors import QueryFailed, UnknownQueue
from tests.cli.running import MAITRED
from tests.cli.running import maitred as command
from tests.node.nodes import running_node

PATIENCE_SECONDS = 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["q"], "--upstream"),
        (["q", "--upstream", "nowhere"], "no URL of an HTTP server"),
        (["q", "--upstream", "http://a:b@c"], "has more than that"),
        (["q", "--upstream", "http://c", "--slots", "0"], "--slots"),
        (["q", "--upstream", "http://c", "--limit", "guess"], "--limit"),
        (["q", "--upstream", "http://c", "--timeout-seconds", "-1"], "--timeout-seconds"),
        (["q", "--upstream", "http://c", "--url", "gopher://x"], "address"),
        (["/q", "--upstream", "http://c"], "namespace"),
    ],
)
def test_bad_input(arguments: list[str], said: str) -> None:
    done = command("serve-http", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


class Backend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"path": self.path}, 404)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({"got": given}, 500 if given == "break" else 200)

    def _answer(self, value: object, status: int) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_whole_way() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with running_node(shards=1) as node:
            upstream = f"http://127.0.0.1:{server.server_port}"
            arguments = ["serve-http", "lab/ask", "--upstream", upstream, "--url", node.url]
            with subprocess.Popen(
                [str(MAITRED), *arguments], stderr=subprocess.PIPE, text=True
            ) as worker:
                try:
                    assert worker.stderr is not None
                    for line in worker.stderr:  # until it says that it is ready
                        if "worker is ready" in line:
                            break
                    _ask(node.url)
                    worker.send_signal(signal.SIGTERM)
                    assert worker.wait(PATIENCE_SECONDS) == 0
                finally:
                    worker.kill()
    finally:
        server.shutdown()
        server.server_close()


def _ask(url: str) -> None:
    with maitred.connect(url) as client:
        told = None
        while told is None:  # a worker that is ready has not been heard of yet
            with suppress(UnknownQueue):
                told = client.query("lab/ask", named={"prompt": "x"}, timeout=PATIENCE_SECONDS)
        assert told == {"got": {"prompt": "x"}}
        whole = client.query("lab/ask", "GET", "/models")
        assert whole["status"] == 404
        assert whole["body"] == {"path": "/models"}
        with pytest.raises(QueryFailed) as caught:
            client.query("lab/ask", "break")
        assert caught.value.kind == "upstream-failed"
