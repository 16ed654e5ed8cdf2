"""A worker's own certificate that is replaced while it listens."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import trustme

from maitred.protocol.worker_address import parse_worker_address
from maitred.security.worker_tls import fingerprint_of, pinning_context
from maitred.worker import query_listener
from tests.attacks.test_05_worker_links import ARGUMENT, RESULT, an_app
from tests.attacks.tls_house import tls_scene
from tests.client.nodes import HOST
from tests.node.in_process import RecordedLog, in_a_loop, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from maitred.worker.worker import Worker


async def shown(worker: Worker) -> bytes:
    """The fingerprint of the certificate that a new connection sees."""
    port = parse_worker_address(worker.address).port
    _, writer = await asyncio.open_connection(HOST, port, ssl=pinning_context(), server_hostname="")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return fingerprint_of(found)


@in_a_loop
async def test_a_new_certificate_is_shown_announced_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_listener, "SWEEP_SECONDS", 0.02)
    file, authority = tmp_path / "worker.pem", trustme.CA()

    def issue() -> bytes:
        made = authority.issue_cert("worker.example")
        made.private_key_and_cert_chain_pem.write_to_path(file)
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode()))

    async with tls_scene(an_app(), tmp_path) as one:
        first = issue()
        log = RecordedLog()
        worker = (await one.worker(certificate=str(file), key=str(file))).worker
        worker._log = log
        before = await one.client()
        assert await before.query("price", ARGUMENT, namespace="desk") == RESULT
        assert parse_worker_address(worker.address).fingerprint == first == await shown(worker)

        second = issue()
        await until(lambda: parse_worker_address(worker.address).fingerprint == second)
        assert await shown(worker) == second
        # Those who are connected go on, and others come in.
        assert await before.query("price", ARGUMENT, namespace="desk") == RESULT
        after = await one.client()
        assert await after.query("price", ARGUMENT, namespace="desk") == RESULT

        file.write_text("nonsense")
        await until(lambda: bool(log.events("error")))
        assert log.events("error") == ["certificate not read again; the old state stays"]
        assert parse_worker_address(worker.address).fingerprint == second == await shown(worker)
        assert await before.query("price", ARGUMENT, namespace="desk") == RESULT
