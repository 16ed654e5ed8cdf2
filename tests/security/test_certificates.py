"""The user that a client's certificate stands for, at both listeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from maitred.config import check
from maitred.errors import InvalidSetting, PermissionDenied, Unauthenticated
from maitred.protocol.frames import Opcode
from maitred.security.certificates import certified
from maitred.security.tls import client_context, server_context
from maitred.settings import Node, Tls
from tests.gateway.test_users import basic
from tests.node.in_process import in_a_loop
from tests.node.raw import PATIENCE_SECONDS, RawClient, startup
from tests.node.test_users import written
from tests.security.bearing import USERS, place
from tests.security.test_tokens_real import refused

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

CLIENT_USERS = {"DNS:ci.example.org": "bob", "CN:ann": "alice", "URI:spiffe://shop/ci": "bob"}
EXPIRY = "Jan  1 00:00:00 2030 GMT"


def told(cn: str = "", **names: str) -> dict[str, Any]:
    """A certificate, as Python tells it."""
    subject = ((("commonName", cn),),) if cn else ()
    return {
        "subject": subject,
        "subjectAltName": tuple(names.items()),
        "notAfter": EXPIRY,
    }


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        (told("ann"), "alice"),
        (told("ann", DNS="elsewhere.example.org"), "alice"),
        (told("zoe", DNS="ci.example.org"), "bob"),
        (told("", DNS="ci.example.org", URI="spiffe://shop/ci"), "bob"),
        (told("ann", DNS="ci.example.org"), None),  # two users
        (told("ci.example.org"), None),  # a name of another kind
        (told("Ann"), None),
        (told("ann\0"), None),
        (told("", DNS="ann"), None),
        (told("", DNS="x.ci.example.org"), None),
        (told("", DirName="ann"), None),
        (told(), None),
        ({}, None),
        (None, None),
    ],
)
def test_names(certificate: dict[str, Any] | None, user: str | None) -> None:
    found = certified(certificate, CLIENT_USERS)
    assert (found.user if found is not None else None) == user
    assert certified(certificate, {}) is None


NAMES = st.dictionaries(st.sampled_from(["DNS", "URI", "email"]), st.sampled_from("abc"))


@given(
    st.sampled_from(["", "a", "b"]),
    NAMES,
    st.dictionaries(
        st.tuples(st.sampled_from(["CN", "DNS", "URI", "email"]), st.sampled_from("abc")).map(
            ":".join
        ),
        st.sampled_from(["ann", "bob"]),
    ),
)
def test_a_certificate_stands_for_the_one_user_that_all_its_mapped_names_have(
    cn: str, names: dict[str, str], mapping: dict[str, str]
) -> None:
    shown = [f"CN:{cn}"] * bool(cn) + [f"{kind}:{value}" for kind, value in names.items()]
    users = {mapping[name] for name in shown if name in mapping}
    found = certified(told(cn, **names), mapping)
    assert (found is not None) == (len(users) == 1)
    assert found is None or {found.user} == users


class Papers:
    """An authority, a node's certificate, and clients'."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)
        made = self._authority.issue_cert("localhost")
        self.certificate, self.key = str(directory / "cert.pem"), str(directory / "key.pem")
        made.cert_chain_pems[0].write_to_path(self.certificate)
        made.private_key_pem.write_to_path(self.key)

    def tls(self, **changes: Any) -> Tls:  # noqa: ANN401
        given: dict[str, Any] = {
            "certificate": self.certificate,
            "key": self.key,
            "client_authorities": self.ca,
            "client_users": CLIENT_USERS,
            **changes,
        }
        return Tls(**given)

    def client(self, *names: str, cn: str | None = None) -> ssl.SSLContext:
        file = str(self._directory / f"{'-'.join(names)}-{cn}.pem".replace("/", "_"))
        made = self._authority.issue_cert(*names, common_name=cn)
        made.private_key_and_cert_chain_pem.write_to_path(file)
        return client_context(self.ca, file)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


def node(papers: Papers) -> dict[str, Any]:
    tls = papers.tls()
    return {"tls": server_context(tls), "tls_settings": tls, "client_tls": papers.client("none")}


@in_a_loop
async def test_a_mapped_certificate_needs_no_secret(tmp_path: Path, papers: Papers) -> None:
    async with place(tmp_path, **node(papers)) as made:
        made.clock.now = 1_795_000_000.0  # before the certificates expire
        bob = papers.client("ci.example.org")
        client = await made.client(tls=bob)
        await made.lets_in(client)
        with pytest.raises(PermissionDenied):
            await made.lets_in(client, "elsewhere")
        answer = await made.http(tls=bob)
        assert (answer.status, made.asking.asked[-1].ask.user) == (200, "bob")
        assert (await made.http(namespace="elsewhere", tls=bob)).status == 403
        assert made.node.shard.authenticator.outcomes["certified"] > 0


@in_a_loop
async def test_others_log_in_as_before(tmp_path: Path, papers: Papers) -> None:
    async with place(tmp_path, **node(papers)) as made:
        made.clock.now = 1_795_000_000.0
        stranger = papers.client("stranger.example.org", cn="ann.example.org")
        with pytest.raises(Unauthenticated):
            await made.client(tls=stranger)
        await made.lets_in(await made.client("bob:builder@", tls=stranger))
        assert (await made.http(tls=stranger)).status == 401
        assert (await made.http(basic("bob", "builder"), tls=stranger)).status == 200


@in_a_loop
async def test_what_a_client_says_goes_before_its_certificate(
    tmp_path: Path, papers: Papers
) -> None:
    async with place(tmp_path, **node(papers)) as made:
        made.clock.now = 1_795_000_000.0
        bob = papers.client("ci.example.org")
        await made.lets_in(await made.client("alice:wonder@", tls=bob), "elsewhere")
        with pytest.raises(Unauthenticated):
            await made.client("alice:wander@", tls=bob)
        assert (await made.http(basic("bob", "wrong"), tls=bob)).status == 401


@in_a_loop
async def test_a_stock_driver_with_a_certificate_is_ready_at_once(
    tmp_path: Path, papers: Papers
) -> None:
    async with place(tmp_path, gateway=False, **node(papers)) as made:
        made.clock.now = 1_795_000_000.0
        client = await RawClient.open(made.node.port, tls=papers.client("ci.example.org"))
        assert (await client.ask(startup())).opcode == Opcode.READY
        client.reset()


@in_a_loop
async def test_it_ends_with_the_user_and_with_the_certificate(
    tmp_path: Path, papers: Papers
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(written({"bob": {"n": ["query"]}}))
    users = {"users": {"alice": USERS["alice"]}, "users_file": str(file)}
    async with place(tmp_path, **users, **node(papers)) as made:  # type: ignore[arg-type]
        made.clock.now = 1_795_000_000.0
        bob, ann = papers.client("ci.example.org"), papers.client("x", cn="ann")
        client, other = await made.client(tls=bob), await made.client(tls=ann)
        await made.lets_in(client)
        await made.lets_in(other)
        file.write_text(written({"carol": {"n": ["query"]}}))
        assert isinstance(await refused(client, made), Unauthenticated)
        async with asyncio.timeout(PATIENCE_SECONDS):  # the gateway reads the file for itself
            while (await made.http(tls=bob)).status != 401:
                pass
        await made.lets_in(other)
        made.clock.now = 4e10  # trustme's certificates have expired by then
        assert isinstance(await refused(other, made), Unauthenticated)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client_authorities": None}, "no authority is set"),
        ({"client_users": {"ann": "alice"}}, "not a name in a certificate"),
        ({"client_users": {"CN:": "alice"}}, "not a name in a certificate"),
        ({"client_users": {"IP:10.0.0.1": "alice"}}, "not a name in a certificate"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], said: str, papers: Papers) -> None:
    with pytest.raises(InvalidSetting, match=said):
        check(Node(users=USERS, tls=papers.tls(**changes)))
    with pytest.raises(InvalidSetting, match="the node has no users"):
        check(Node(tls=papers.tls()))
    check(Node(users=USERS, tls=papers.tls()))
