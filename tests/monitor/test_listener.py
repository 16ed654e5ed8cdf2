"""The listener for monitoring: three pages, and nothing that a stranger sends does any harm."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from maitred.errors import CannotStart
from maitred.monitor import listener as module
from maitred.monitor.listener import CONNECTIONS, HEAD_BYTES, MonitorListener, ProbeVerdict
from tests.node.in_process import RecordedLog
from tests.store.engines import awaited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Process:
    """What is monitored."""

    def __init__(self) -> None:
        self.verdict = ProbeVerdict(ok=True, state="ready")
        self.measured = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def health(self) -> ProbeVerdict:
        return ProbeVerdict(ok=True, state="alive")

    async def ready(self) -> ProbeVerdict:
        return self.verdict

    async def metrics(self) -> str:
        self.measured += 1
        await self.gate.wait()
        return "maitred_x 1\n"


@asynccontextmanager
async def listening(process: Process) -> AsyncIterator[MonitorListener]:
    listener = MonitorListener(process, RecordedLog())
    await listener.open("127.0.0.1", 0)
    try:
        yield listener
    finally:
        await listener.close()


async def said(listener: MonitorListener, request: bytes) -> tuple[int, bytes, bytes]:
    """The status, the head and the body of the answer."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


def asking(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@awaited
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:4781", 200),
        ("[::1]:4781", 200),
        ("LOCALHOST", 200),
        ("evil.example:4781", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_a_name_that_was_made_to_point_here_gets_no_metrics(host: str, status: int) -> None:
    async with listening(Process()) as listener:
        request = f"GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
        assert (await said(listener, request))[0] == status
        assert (await said(listener, request.replace(b"/metrics", b"/health")))[0] == 200


@awaited
async def test_the_three_pages() -> None:
    process = Process()
    async with listening(process) as listener:
        status, head, body = await said(listener, asking("/metrics"))
        assert (status, body) == (200, b"maitred_x 1\n")
        assert b"text/plain; version=0.0.4" in head
        status, _, body = await said(listener, asking("/health?x=1"))
        assert (status, json.loads(body)) == (200, {"state": "alive"})
        process.verdict = ProbeVerdict(ok=False, state="not ready", problems=("No node.",))
        status, _, body = await said(listener, asking("/ready"))
        assert (status, json.loads(body)) == (
            503,
            {"state": "not ready", "problems": ["No node."]},
        )


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asking("/"), 404),
        (asking("/metrics/../etc/passwd"), 404),
        (asking("/metrics", "POST"), 405),
        (asking("/health", "DELETE"), 405),
        (b"\xff\xff\xff\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (b"GET /health HTTP/2.0\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES, 431),
        (
            b"GET /metrics HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES + b"\r\nhost: evil.example\r\n\r\n",
            431,
        ),
    ],
)
@awaited
async def test_everything_else_is_refused(request_: bytes, status: int) -> None:
    async with listening(Process()) as listener:
        assert (await said(listener, request_))[0] == status


@awaited
async def test_a_head_request_has_no_body() -> None:
    async with listening(Process()) as listener:
        status, head, body = await said(listener, asking("/metrics", "HEAD"))
        assert (status, body) == (200, b"")
        assert b"Content-Length: 12" in head


@awaited
async def test_a_caller_that_ends_its_side_gets_the_answer() -> None:
    """As `printf ... | nc -N` does."""
    process = Process()
    process.gate.clear()
    async with listening(process) as listener, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(asking("/metrics"))
        writer.write_eof()
        while not process.measured:  # noqa: ASYNC110 - bounded by the test's own time
            await asyncio.sleep(0)
        # Its end was read before a connection that came later was answered.
        assert (await said(listener, asking("/health")))[0] == 200
        process.gate.set()
        assert (await reader.read()).endswith(b"maitred_x 1\n")
        writer.close()


@awaited
async def test_a_caller_that_ends_its_side_before_it_has_asked_is_left() -> None:
    async with listening(Process()) as listener, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET /health")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


@awaited
async def test_any_number_of_callers_share_one_measurement() -> None:
    process = Process()
    process.gate.clear()
    async with listening(process) as listener:
        calls = [asyncio.create_task(said(listener, asking("/metrics"))) for _ in range(20)]
        while not process.measured:  # noqa: ASYNC110 - bounded by the test's own time
            await asyncio.sleep(0)
        # Probes are answered while a measurement is under way.
        assert (await said(listener, asking("/health")))[0] == 200
        while len(listener._connections) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
        process.gate.set()
        assert [call[0] for call in await asyncio.gather(*calls)] == [200] * 20
        assert process.measured == 1


@awaited
async def test_callers_that_send_nothing_keep_no_one_out() -> None:
    async with listening(Process()) as listener:
        silent = [
            await asyncio.open_connection("127.0.0.1", listener.port)
            for _ in range(CONNECTIONS + 10)
        ]
        for _, writer in silent:
            writer.write(b"GET /metrics HTTP/1.1\r\nx:")
        assert (await said(listener, asking("/metrics")))[0] == 200
        assert len(listener._connections) <= CONNECTIONS
        for _, writer in silent:
            writer.close()


@awaited
async def test_a_caller_that_sends_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.05)
    async with listening(Process()) as listener, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"G")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


@pytest.mark.parametrize(("is_open", "status"), [(False, 403), (True, 200)])
@awaited
async def test_other_machines_get_the_metrics_only_if_that_was_decided(
    is_open: bool, status: int
) -> None:
    listener = MonitorListener(Process(), RecordedLog(), open_metrics=is_open)
    assert (await listener.answer("GET", "/metrics", is_local=False)).status == status
    assert (await listener.answer("GET", "/ready", is_local=False)).status == 200
    assert (await listener.answer("GET", "/metrics", is_local=True)).status == 200


@awaited
async def test_a_page_that_fails_is_answered_and_logged() -> None:
    class Broken(Process):
        async def metrics(self) -> str:
            raise ValueError("no")

    log = RecordedLog()
    listener = MonitorListener(Broken(), log)
    assert (await listener.answer("GET", "/metrics", is_local=True)).status == 500
    assert (await listener.answer("GET", "/health", is_local=True)).status == 200


@awaited
async def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    async with listening(Process()) as listener:
        other = MonitorListener(Process(), RecordedLog())
        with pytest.raises(CannotStart, match=f"Port {listener.port} on 127.0.0.1, for monitoring"):
            await other.open("127.0.0.1", listener.port)
