"""The authority of a cluster: made once, its files private, its certificates good for both ends."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trustme

from maitred.errors import InvalidArgument, InvalidSetting
from maitred.security.cluster_authority import (
    AUTHORITY_DAYS,
    CertifiedHost,
    ClusterFiles,
    init_tls,
    issue,
    make_authority,
    parse_hosts,
)
from maitred.security.cluster_tls import check_certificate
from maitred.settings import Tls

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime.now(UTC)


def made(directory: Path, *hosts: str, now: datetime = NOW, days: int = 30) -> ClusterFiles:
    return init_tls(directory, parse_hosts(hosts), cluster="maitred", now=now, days=days)


def tls_of(files: ClusterFiles, number: int = 0, **more: str) -> Tls:
    node = files.nodes[number]
    return Tls(certificate=str(node.certificate), key=str(node.key), **more)  # type: ignore[arg-type]


def test_other_nodes_accept_each_name_of_a_host(tmp_path: Path) -> None:
    files = made(tmp_path / "tls", "Node-1.example,10.0.0.1", "::1", "köln.example")
    assert [node.host.host for node in files.nodes] == ["node-1.example", "::1", "köln.example"]
    for number, node in enumerate(files.nodes):
        for name in node.host.names:
            check_certificate(tls_of(files, number), str(files.certificate), name)
    # Where clients have to show a certificate, that of a node is one of a client, too.
    both = tls_of(files, client_authorities=str(files.certificate))
    check_certificate(both, str(files.certificate), "10.0.0.1")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = made(tmp_path / "tls", "a", "b")
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == [
        *("a.key", "a.pem", "b.key", "b.pem", "cluster-ca.key", "cluster-ca.pem"),
    ]
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    for path in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert files.made


def test_a_later_host_gets_a_certificate_of_the_same_authority(tmp_path: Path) -> None:
    first = made(tmp_path, "a")
    kept = first.certificate.read_bytes(), first.key.read_bytes()
    second = made(tmp_path, "b")
    assert not second.made
    assert (second.certificate.read_bytes(), second.key.read_bytes()) == kept
    check_certificate(tls_of(second), str(first.certificate), "b")


def test_nothing_is_replaced(tmp_path: Path) -> None:
    made(tmp_path, "a")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidArgument, match=r"a\.pem exists already"):
        made(tmp_path, "b", "a")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "c.key").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidArgument, match=r"c\.key exists already"):
        made(tmp_path, "c")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("missing", ["cluster-ca.pem", "cluster-ca.key"])
def test_half_an_authority_is_not_completed(tmp_path: Path, missing: str) -> None:
    made(tmp_path, "a")
    (tmp_path / missing).unlink()
    with pytest.raises(InvalidArgument, match=rf"but .*{missing} is not"):
        made(tmp_path, "b")
    assert not (tmp_path / "b.pem").exists()


def test_files_of_another_kind_are_no_authority(tmp_path: Path) -> None:
    made(tmp_path / "one", "a")
    made(tmp_path / "two", "a")
    (tmp_path / "one" / "cluster-ca.key").write_bytes(
        (tmp_path / "two" / "cluster-ca.key").read_bytes()
    )
    with pytest.raises(InvalidArgument, match="is not the key of"):
        made(tmp_path / "one", "b")
    for garbage in (b"", b"garbage", (tmp_path / "two" / "a.pem").read_bytes()):
        (tmp_path / "two" / "cluster-ca.pem").write_bytes(garbage)
        with pytest.raises(InvalidArgument, match="not the files of a certificate authority"):
            made(tmp_path / "two", "b")


def test_an_expired_authority_signs_nothing(tmp_path: Path) -> None:
    made(tmp_path, "a", now=NOW - timedelta(days=AUTHORITY_DAYS + 1))
    with pytest.raises(InvalidArgument, match="expired at"):
        made(tmp_path, "b")


def test_a_certificate_expires_with_its_authority_at_the_latest() -> None:
    authority = make_authority("maitred", NOW)
    host = CertifiedHost("a", ("a",))
    assert issue(authority, host, NOW, 7)[1] == NOW + timedelta(days=7)
    late = NOW + timedelta(days=AUTHORITY_DAYS - 1)
    assert issue(authority, host, late, 7)[1] == authority.certificate.not_valid_after_utc


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["a", "A"], "given twice"),
        (["::1", "[::1]"], "given twice"),
        (["a:4747"], "has a port"),
        ([""], "does not name a host"),
        (["a,,b"], "does not name a host"),
        (["::"], "all addresses"),
        (["*.example"], "not a host"),
        (["../a"], "not a host"),
        (["a b"], "not a host"),
        (["cluster-ca"], "the authority's files"),
    ],
)
def test_hosts_without_a_certificate(hosts: list[str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_hosts(hosts)


def test_a_certificate_that_other_nodes_refuse(tmp_path: Path) -> None:
    files = made(tmp_path / "one", "a")
    with pytest.raises(InvalidSetting, match="is not valid for 'b', which this node announces"):
        check_certificate(tls_of(files), str(files.certificate), "b")
    with pytest.raises(InvalidSetting, match=r"is not valid for '10\.0\.0\.1'"):
        check_certificate(tls_of(files), str(files.certificate), "10.0.0.1")
    other = made(tmp_path / "two", "a")
    with pytest.raises(InvalidSetting, match="is not signed by an authority in"):
        check_certificate(tls_of(files), str(other.certificate), "a")
    old = made(tmp_path / "three", "a", now=NOW - timedelta(days=40))
    with pytest.raises(InvalidSetting, match="is not valid now: certificate has expired"):
        check_certificate(tls_of(old), str(old.certificate), "a")


def test_a_certificate_that_the_node_itself_refuses(tmp_path: Path) -> None:
    files = made(tmp_path / "one", "a")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    tls = tls_of(files, client_authorities=str(tmp_path / "clients.pem"))
    with pytest.raises(InvalidSetting, match="would refuse its own certificate"):
        check_certificate(tls, str(files.certificate), "a")


def test_certificates_of_other_makers_do_as_well(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = tmp_path / "own.pem"
    authority.issue_cert("node-1").private_key_and_cert_chain_pem.write_to_path(str(own))
    check_certificate(Tls(certificate=str(own), key=str(own)), str(tmp_path / "ca.pem"), "node-1")
