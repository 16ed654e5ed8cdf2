"""Certificates and users that are read again while a process runs."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import ssl
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidSetting, MaitredError
from maitred.security.directory import Directory
from maitred.security.expiry import DAY_SECONDS, expiry_of, not_after
from maitred.security.reload import PartReloaded, ProcessReload
from maitred.security.tls import DiallerTls, ListenerTls, client_context
from maitred.settings import Node, Tls, User
from tests.node.in_process import LOOPS, RecordedLog, in_a_loop
from tests.node.raw import PATIENCE_SECONDS
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

DAY = dt.timedelta(days=1)


class Papers:
    """A certificate in files, which can be replaced."""

    def __init__(self, place: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.certificate, self.key = (str(place / one) for one in ("ca", "cert", "key"))
        self.authority.cert_pem.write_to_path(self.ca)
        self.renew()

    def renew(self, not_after: dt.datetime | None = None) -> trustme.LeafCert:
        made = self.authority.issue_cert("localhost", not_after=not_after)
        made.private_key_pem.write_to_path(self.key)
        made.cert_chain_pems[0].write_to_path(self.certificate)
        return made

    def tls(self, *, clients: bool = False) -> Tls:
        return Tls(
            certificate=self.certificate,
            key=self.key,
            client_authorities=self.ca if clients else None,
        )

    def der(self) -> bytes:
        with open(self.certificate) as file:  # noqa: PTH123 - a path as text
            return ssl.PEM_cert_to_DER_cert(file.read())


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


class EchoListener(asyncio.Protocol):
    """Says everything back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


Dialled = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(tls: ListenerTls) -> AsyncIterator[Callable[..., Awaitable[Dialled]]]:
    """A listener; what is given dials it. In the end everything is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(EchoListener, "127.0.0.1", 0, ssl=tls.listening)
    port = server.sockets[0].getsockname()[1]
    opened: list[Dialled] = []

    async def dial(context: ssl.SSLContext, name: str = "localhost") -> Dialled:
        async with asyncio.timeout(PATIENCE_SECONDS):
            opened.append(
                await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
            )
        return opened[-1]

    try:
        yield dial
    finally:
        for _, writer in opened:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.wait_closed()
        server.close()


def shown(writer: asyncio.StreamWriter) -> bytes:
    """The certificate that the listener has shown."""
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(found, bytes)
    return found


async def lives(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.readline() == b"hello\n"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_new_connections_see_the_new_certificate_and_old_ones_go_on(
    loop: str,  # noqa: ARG001
    named: bool,
    papers: Papers,
) -> None:
    tls = ListenerTls(papers.tls())
    trusting = client_context(papers.ca)
    trusting.check_hostname = named
    name = "localhost" if named else ""
    first = papers.der()
    async with listening(tls) as dial:
        old = await dial(trusting, name)
        assert shown(old[1]) == first
        papers.renew()
        between = await dial(trusting, name)
        assert shown(between[1]) == first, "not before it is read"
        assert tls.reload()
        new = await dial(trusting, name)
        assert shown(new[1]) == papers.der() != first
        for one in (old, between, new):
            await lives(*one)


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_an_authority_that_is_removed_lets_nobody_in(
    loop: str,  # noqa: ARG001
    papers: Papers,
    tmp_path: Path,
) -> None:
    """Not with a new handshake, and there is no session of before to come back with."""
    tls = ListenerTls(papers.tls(clients=True))
    mine, theirs, trusted = (str(tmp_path / name) for name in ("mine", "theirs", "trusted"))
    papers.authority.cert_pem.write_to_path(trusted)
    papers.authority.issue_cert("me").private_key_and_cert_chain_pem.write_to_path(mine)
    async with listening(tls) as dial:
        old = await dial(client_context(trusted, mine))
        await lives(*old)
        session = old[1].get_extra_info("ssl_object").session
        assert session is None or not session.has_ticket
        authority = trustme.CA()
        authority.cert_pem.write_to_path(papers.ca)
        authority.issue_cert("them").private_key_and_cert_chain_pem.write_to_path(theirs)
        assert tls.reload()
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await lives(*await dial(client_context(trusted, mine)))
        await lives(*await dial(client_context(trusted, theirs)))
        await lives(*old)


@pytest.mark.parametrize("broken", ["certificate", "key", "gone"])
@in_a_loop
async def test_a_broken_certificate_keeps_the_old_one(broken: str, papers: Papers) -> None:
    log = RecordedLog()
    tls = ListenerTls(papers.tls())
    reloading = ProcessReload(Directory(Node()), (tls,), log)
    context, expires_at = tls.context, tls.expires_at
    if broken == "gone":
        os.unlink(papers.key)  # noqa: PTH108 - a path as text
    elif broken == "key":
        trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(papers.key)
    else:
        with open(papers.certificate, "w") as file:  # noqa: ASYNC230, PTH123
            file.write("nonsense")
    users, certificate = await reloading.reload()
    assert users == PartReloaded("users", "unchanged")
    assert (certificate.part, certificate.state) == ("certificate", "failed")
    assert "TLS" in certificate.problem
    assert (tls.context, tls.expires_at) == (context, expires_at)
    assert log.events("error") == ["certificate not read again; the old state stays"]
    assert reloading.outcomes == {("certificate", "failed"): 1}
    assert not tls.has_changed()
    assert not tls.has_changed(), "not until it changes again"
    papers.renew()
    assert not tls.has_changed(), "its files may still be on their way"
    assert tls.has_changed()
    assert (await reloading.reload())[1] == PartReloaded("certificate", "changed")


@in_a_loop
async def test_a_look_reads_what_has_changed_and_only_that(papers: Papers) -> None:
    log = RecordedLog()
    tls = ListenerTls(papers.tls())
    changed: list[str] = []
    reloading = ProcessReload(Directory(Node()), (tls,), log, changed.append)
    tasks: list[asyncio.Task[None]] = []

    def look() -> None:
        reloading.look(lambda work: tasks.append(asyncio.ensure_future(work)))

    look()
    assert not tasks
    papers.renew()
    look()
    look()
    look()
    assert len(tasks) == 1
    await tasks[0]
    assert changed == ["certificate"]
    look()
    assert len(tasks) == 1


@in_a_loop
async def test_users_of_the_settings_are_replaced() -> None:
    log = RecordedLog()
    alice = User(secret=cheaply("a"), permissions={"*": ["query"]})
    directory = Directory(Node(users={"alice": alice}))
    reloading = ProcessReload(directory, (), log)
    assert await reloading.reload({"alice": alice}) == [PartReloaded("users", "unchanged")]
    assert await reloading.reload({"bob": alice}) == [PartReloaded("users", "changed")]
    assert directory.user("alice") is None
    [failed] = await reloading.reload({"bob": User(secret="plain")})  # noqa: S106
    assert failed.state == "failed"
    assert "users.bob.secret" in failed.problem
    assert "plain" not in failed.problem
    assert directory.user("bob") == alice
    assert await reloading.reload() == [PartReloaded("users", "unchanged")]


@in_a_loop
async def test_a_node_without_users_does_not_get_some_by_reloading() -> None:
    """Those who are connected may do anything, and would go on."""
    directory = Directory(Node())
    [failed] = await ProcessReload(directory, (), RecordedLog()).reload(
        {"alice": User(secret=cheaply("a"))}
    )
    assert failed.state == "failed"
    assert "Restart" in failed.problem


def test_a_dialler_uses_the_files_as_they_are(papers: Papers) -> None:
    told: list[MaitredError] = []
    dialler = DiallerTls(lambda: client_context(papers.ca), (papers.ca, None), told.append)
    first = dialler()
    assert dialler() is first
    with open(papers.ca, "w") as file:  # noqa: PTH123
        file.write("nonsense")
    assert dialler() is dialler() is first
    assert len(told) == 1
    trustme.CA().cert_pem.write_to_path(papers.ca)
    assert dialler() is not first
    assert len(told) == 1


@pytest.mark.parametrize("year", [2049, 2050, 2080])
def test_the_end_of_a_certificate(year: int, papers: Papers) -> None:
    end = dt.datetime(year, 5, 17, 10, 11, 12, tzinfo=dt.UTC)
    papers.renew(end)
    assert expiry_of(papers.certificate) == end.timestamp()
    assert ListenerTls(papers.tls()).expires_at == end.timestamp()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        not_after(data)


def test_a_file_without_a_certificate(papers: Papers) -> None:
    with pytest.raises(InvalidSetting, match="does not say when it expires"):
        expiry_of(papers.key)


@in_a_loop
async def test_a_certificate_that_expires_is_told_every_day(papers: Papers) -> None:
    log = RecordedLog()
    now = time.time()
    papers.renew(dt.datetime.fromtimestamp(now, dt.UTC) + 20 * DAY)
    reloading = ProcessReload(Directory(Node()), (ListenerTls(papers.tls()),), log)
    days = []
    for hour in range(24 * 22):
        before = len(log.lines)
        reloading.look_at_expiries(now + hour * DAY_SECONDS / 24)
        days += [hour // 24] * (len(log.lines) - before)
    assert log.events("warning") == ["certificate expires soon"] * 14
    assert set(log.events("error")) == {"certificate has expired"}
    assert days == sorted(set(days))
    assert min(days) == 6
    assert reloading.expiries()["certificate"] == pytest.approx(now + 20 * DAY_SECONDS, abs=1)
