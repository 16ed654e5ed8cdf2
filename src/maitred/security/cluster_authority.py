"""The certificate authority of a cluster, and the certificates that it signs for nodes.

`maitred admin cluster init-tls` keeps the authority in a directory, as two PEM files, and adds one
certificate and one key for each node. Nothing here needs a network or a running node. Whoever has
the authority's key can make a node of the cluster, so that key belongs on none of the nodes.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from maitred.errors import InvalidArgument, InvalidSetting
from maitred.security.announced_address import parse_announced
from maitred.security.self_signed import PemPair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AUTHORITY: Final = "cluster-ca"
"""Name of the authority's files, without `.pem` and `.key`."""

AUTHORITY_DAYS: Final = 3_650
"""How long an authority is valid. To replace it, all nodes have to trust two for a while, so that
should be rare."""

NODE_DAYS: Final = 730
"""How long a node's certificate is valid by default: nodes read a new one without a restart, and
warn for two weeks before the old one expires."""

EARLY: Final = timedelta(hours=1)
"""How long before its making a certificate is valid, for machines whose clocks are late."""

NAME_MAX: Final = 64
"""Longest common name in a certificate. Clients compare the alternative names, not this one."""

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


class ClusterAuthority(NamedTuple):
    """The authority's certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> PemPair:
        """Return both in PEM form."""
        return PemPair(_certificate_pem(self.certificate), _key_pem(self.key))


class CertifiedHost(NamedTuple):
    """A node's host, and all names for which its certificate is valid."""

    host: str
    names: tuple[str, ...]
    """The host itself first."""

    @property
    def file(self) -> str:
        """Name of its files, without `.pem` and `.key`."""
        return self.host.replace(":", "_")


class NodeFiles(NamedTuple):
    """The files that were made for one node."""

    host: CertifiedHost
    certificate: Path
    key: Path
    expires_at: datetime


class ClusterFiles(NamedTuple):
    """The authority's files and those of the nodes."""

    certificate: Path
    key: Path
    made: bool
    """Whether the authority is new; otherwise it was in the directory."""
    nodes: tuple[NodeFiles, ...]


def parse_hosts(given: Sequence[str]) -> list[CertifiedHost]:
    """Return the hosts of a command line, each with further names after commas; raise
    `InvalidArgument` if one is invalid or occurs twice."""
    found: dict[str, CertifiedHost] = {}
    for text in given:
        names = tuple(dict.fromkeys(_name(one) for one in text.split(",")))
        one = CertifiedHost(names[0], names)
        if one.file == AUTHORITY:
            raise InvalidArgument(
                f"{AUTHORITY} is the name of the authority's files, so no host can have it.",
                remedy=f"Put another name of the host first: NAME,{AUTHORITY}.",
            )
        if one.file in found:
            raise InvalidArgument(f"The host {one.host} is given twice.", remedy="Give it once.")
        found[one.file] = one
    return list(found.values())


def _name(text: str) -> str:
    given = text.strip().lower()
    try:
        host, port = parse_announced(given, "The host")
    except InvalidSetting as problem:
        raise InvalidArgument(problem.sentence, remedy=problem.remedy) from None
    if port is not None:
        raise InvalidArgument(
            f"{given[:60]!r} has a port, and certificates are for hosts.", remedy=f"Give {host}."
        )
    return host


def init_tls(
    directory: Path,
    hosts: Sequence[CertifiedHost],
    *,
    cluster: str,
    now: datetime,
    days: int = NODE_DAYS,
) -> ClusterFiles:
    """Make a certificate for each host, signed by the authority in the directory, which is made if
    it is not there. Existing files are never replaced: raise `InvalidArgument` before anything is
    written. Raises `OSError` if the directory cannot be used."""
    certificate, key = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    targets = [(directory / f"{one.file}.pem", directory / f"{one.file}.key") for one in hosts]
    for target in (path for pair in targets for path in pair):
        if os.path.lexists(target):
            raise InvalidArgument(
                f"{target} exists already, and is not replaced.",
                remedy="Move it away if you want a new one, or leave out its host.",
            )
    known = _read_authority(certificate, key, now)
    authority = known or make_authority(cluster, now)
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    if known is None:
        made = authority.pem()
        _write(key, made.key)
        _write(certificate, made.certificate)
    nodes = []
    for one, (its_certificate, its_key) in zip(hosts, targets, strict=True):
        pair, until = issue(authority, one, now, days)
        _write(its_key, pair.key)
        _write(its_certificate, pair.certificate)
        nodes.append(NodeFiles(one, its_certificate, its_key, until))
    return ClusterFiles(certificate, key, known is None, tuple(nodes))


def make_authority(cluster: str, now: datetime) -> ClusterAuthority:
    """Make an authority that can sign certificates of nodes, and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject(f"maitred cluster {cluster}")
    certificate = (
        _builder(name, name, key.public_key(), (now, now + timedelta(days=AUTHORITY_DAYS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ClusterAuthority(certificate, key)


def issue(
    authority: ClusterAuthority, host: CertifiedHost, now: datetime, days: int = NODE_DAYS
) -> tuple[PemPair, datetime]:
    """Make a key and a certificate with which a node serves clients and connects to other nodes;
    return them, and until when the certificate is valid: no longer than the authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    public = key.public_key()
    certificate = (
        _builder(_subject(host.host), authority.certificate.subject, public, (now, until))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_alternative(name) for name in host.names]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return PemPair(_certificate_pem(certificate), _key_pem(key)), until


def _read_authority(certificate: Path, key: Path, now: datetime) -> ClusterAuthority | None:
    """Return the authority in these files; None if there is none. Raise `InvalidArgument` if it is
    incomplete, expired or something else."""
    there = [path for path in (certificate, key) if os.path.lexists(path)]
    if not there:
        return None
    if len(there) == 1:
        missing = key if there[0] == certificate else certificate
        raise InvalidArgument(
            f"{there[0]} is there, but {missing} is not.",
            remedy="Put it back. Certificates of another authority would not fit those of the "
            "nodes that have one; for a new cluster, use an empty directory.",
        )
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        found.verify_directly_issued_by(found)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as problem:
        raise InvalidArgument(
            f"{certificate} and {key} are not the files of a certificate authority: {problem}.",
            remedy="Put the right files back, or use an empty directory.",
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or (
        private.public_key() != found.public_key()
    ):
        raise InvalidArgument(
            f"{key} is not the key of {certificate}.",
            remedy="Put the right files back, or use an empty directory.",
        )
    if found.not_valid_after_utc <= now:
        raise InvalidArgument(
            f"The authority {certificate} expired at {found.not_valid_after_utc:%Y-%m-%d}.",
            remedy="Make a new one in an empty directory, and let every node trust both "
            "(cluster.authorities can hold several) while you replace the certificates.",
        )
    return ClusterAuthority(found, private)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    valid: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    now, until = valid
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - EARLY)
        .not_valid_after(until.astimezone(UTC))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_MAX])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name if name.isascii() else name.encode("idna").decode())


def _certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _write(path: Path, text: str) -> None:
    """Write a new file that only its owner can read; fail if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, FILE_MODE)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, FILE_MODE)  # the umask may have removed the owner's permissions
        file.write(text)
        file.flush()
        os.fsync(descriptor)
