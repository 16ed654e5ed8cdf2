"""Contexts that shake hands with each other, and files that make none."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme

from maitred.errors import InvalidSetting
from maitred.security.tls import client_context, server_context
from maitred.settings import Tls

if TYPE_CHECKING:
    from pathlib import Path


class Files(NamedTuple):
    authorities: str
    certificate: str
    key: str
    other_authorities: str
    other_certificate: str
    other_key: str
    encrypted_key: str
    nonsense: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("tls")
    paths = Files(*(str(directory / f"{name}.pem") for name in Files._fields))
    for authority, (authorities, certificate, key) in (
        (trustme.CA(), (paths.authorities, paths.certificate, paths.key)),
        (trustme.CA(), (paths.other_authorities, paths.other_certificate, paths.other_key)),
    ):
        authority.cert_pem.write_to_path(authorities)
        made = authority.issue_cert("localhost")
        made.private_key_pem.write_to_path(key)
        for part in made.cert_chain_pems:
            part.write_to_path(certificate, append=True)
    _encrypt(paths.key, paths.encrypted_key)
    (directory / "nonsense.pem").write_text("no PEM")
    return paths


def _encrypt(key: str, encrypted: str) -> None:
    from pathlib import Path

    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    Path(encrypted).write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame"),
        )
    )


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> ssl.SSLObject:
    """Both ends in memory, until neither has anything more to say; the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    ends[1].write(b"hello")
    assert ends[0].read(5) == b"hello"
    return ends[0]


def test_a_client_that_knows_the_authority_gets_through(files: Files) -> None:
    server = server_context(Tls(certificate=files.certificate, key=files.key))
    assert shake_hands(server, client_context(files.authorities)).version() == "TLSv1.3"


def test_a_client_verifies_authority_and_name(files: Files) -> None:
    server = server_context(Tls(certificate=files.certificate, key=files.key))
    for client, name in (
        (client_context(), "localhost"),
        (client_context(files.other_authorities), "localhost"),
        (client_context(files.authorities), "elsewhere"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, client, name)


def test_authorities_for_clients_make_their_certificates_a_must(files: Files) -> None:
    server = server_context(
        Tls(
            certificate=files.certificate,
            key=files.key,
            client_authorities=files.other_authorities,
        )
    )
    known = client_context(files.authorities, files.other_certificate, files.other_key)
    shake_hands(server, known)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client_context(files.authorities))
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client_context(files.authorities, files.certificate, files.key))


def test_nothing_older_than_tls_1_2(files: Files) -> None:
    server = server_context(Tls(certificate=files.certificate, key=files.key))
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context().minimum_version == ssl.TLSVersion.TLSv1_2
    client = client_context(files.authorities)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, client).version() == "TLSv1.2"


def test_certificate_and_key_may_share_a_file(files: Files, tmp_path: Path) -> None:
    from pathlib import Path as File

    both = tmp_path / "both.pem"
    both.write_text(File(files.key).read_text() + File(files.certificate).read_text())
    client_context(None, str(both))


@pytest.mark.parametrize(
    ("certificate", "key", "authorities", "said"),
    [
        ("missing", "key", None, "TLS certificate missing cannot be read: No such file"),
        ("certificate", "missing", None, "TLS key missing cannot be read: No such file"),
        ("certificate", "key", "missing", "TLS authorities missing cannot be read: No such file"),
        ("certificate", "other_key", None, "key .* does not belong to the certificate"),
        ("certificate", "encrypted_key", None, "is encrypted"),
        ("nonsense", "key", None, "cannot be used"),
        ("certificate", "nonsense", None, "cannot be used"),
        ("certificate", "key", "nonsense", "TLS authorities .* cannot be used"),
        ("certificate", "key", "key", "TLS authorities .* cannot be used"),
        ("/", "key", None, "TLS certificate / cannot be read: Is a directory"),
        ("a\0b", "key", None, "cannot be read"),
    ],
)
def test_files_that_make_no_context(
    files: Files, certificate: str, key: str, authorities: str | None, said: str
) -> None:
    paths = files._asdict()
    tls = Tls(
        certificate=paths.get(certificate, certificate),
        key=paths.get(key, key),
        client_authorities=paths.get(authorities, authorities) if authorities else None,
    )
    with pytest.raises(InvalidSetting, match=said) as refused:
        server_context(tls)
    assert refused.value.remedy
    with pytest.raises(InvalidSetting, match=said):
        client_context(tls.client_authorities, tls.certificate, tls.key)


def test_a_key_alone_is_refused(files: Files) -> None:
    with pytest.raises(InvalidSetting, match="without its certificate"):
        client_context(None, None, files.key)
