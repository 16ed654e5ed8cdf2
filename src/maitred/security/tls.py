"""TLS contexts for both ends, from files; errors say in words what is wrong with a file.

Files change while a process runs. A listener has one context for as long as it listens, and that
context passes each new connection to the newest one when the client has sent its hello (the SNI
callback, which OpenSSL calls without a name as well). A dialler asks for the newest context each
time. Open connections keep their context.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.errors import InvalidSetting, MaitredError
from maitred.security.expiry import expiry_of
from maitred.security.stamps import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.security.stamps import Stamp
    from maitred.settings import Tls


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for a node: TLS 1.2 or newer; clients must show certificates if
    `client_authorities` is set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A TLS 1.2 client could make the node renegotiate again and again on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_certificate(context, tls.certificate, tls.key)
    if tls.client_authorities is not None:
        _load_authorities(context, tls.client_authorities)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session would accept a certificate whose authority was removed since.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def client_context(
    authorities: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return the context for a client, which verifies the node's certificate by the given
    authorities, or by the system's if there are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name by default
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, authorities)
    if certificate is not None:
        load_certificate(context, certificate, key)
    elif key is not None:
        raise InvalidSetting(
            f"The TLS key {key} is given without its certificate.",
            remedy="Name the certificate as well.",
        )
    return context


class TlsFromFiles:
    """The newest TLS context made from some files."""

    part = "certificate"

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str | None]) -> None:
        self._make = make
        self._files = tuple(file for file in files if file is not None)
        self._loaded = self._looked = self._stamps()
        self.context = make()

    def has_changed(self) -> bool:
        """Whether the files have changed since they were last read, but not since the last call: a
        certificate and its key are not replaced in one step."""
        looked, self._looked = self._looked, self._stamps()
        return self._looked == looked != self._loaded

    def reload(self) -> bool:
        """Read the files, even if they have not changed; raise if they cannot be used."""
        stamps = self._stamps()
        changed, self._loaded = stamps != self._loaded, stamps
        self.context = self._make()
        return changed

    def _stamps(self) -> list[Stamp | None]:
        return [stamp_of(file) for file in self._files]


class ListenerTls(TlsFromFiles):
    """TLS of a listener whose certificate and authorities can change while it listens."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.expires_at = 0.0
        """When the certificate expires, in seconds since 1970."""
        super().__init__(self._read, (tls.certificate, tls.key, tls.client_authorities))
        self.listening = server_context(tls)
        """The context to listen with; it passes each connection to the newest one."""
        self.listening.sni_callback = self._hand_over

    def _read(self) -> ssl.SSLContext:
        context = server_context(self._tls)
        self.expires_at = expiry_of(self._tls.certificate)
        return context

    def _hand_over(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self.context


class DiallerTls(TlsFromFiles):
    """TLS of a client, which uses the files as they are at each new connection.

    If the files cannot be used, the last context stays in use; `tell` is called with the reason,
    once for each state of the files.
    """

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Iterable[str | None],
        tell: Callable[[MaitredError], None] = lambda _problem: None,
    ) -> None:
        super().__init__(make, files)
        self._tell = tell

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._stamps() != self._loaded:
            try:
                self.reload()
            except MaitredError as problem:
                self._tell(problem)
        return self.context


class _Encrypted(Exception):
    """OpenSSL asked for a passphrase; without an answer it would ask at the terminal."""


def _refuse_passphrase() -> str:
    raise _Encrypted


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Make the context use this certificate; raise `InvalidSetting` if it cannot be used."""
    _check_readable("certificate", certificate)
    if key is not None:
        _check_readable("key", key)
    holder = key or certificate
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _Encrypted:
        raise InvalidSetting(
            f"The TLS key {holder} is encrypted, and a node cannot ask for its passphrase.",
            remedy="Store it unencrypted, readable for this user only.",
        ) from None
    except ssl.SSLError as problem:
        if problem.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise InvalidSetting(
                f"The TLS key {holder} does not belong to the certificate {certificate}.",
                remedy="The node's own certificate has to be the first one in its file.",
            ) from None
        raise InvalidSetting(
            f"The TLS certificate {certificate} and the key {holder} cannot be used"
            f"{_reason(problem)}.",
            remedy="Both have to be in PEM form.",
        ) from None


def _load_authorities(context: ssl.SSLContext, authorities: str) -> None:
    _check_readable("authorities", authorities)
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as problem:
        raise InvalidSetting(
            f"The TLS authorities {authorities} cannot be used{_reason(problem)}.",
            remedy="The file has to hold certificates in PEM form.",
        ) from None


def _check_readable(what: str, path: str) -> None:
    """Raise `InvalidSetting` unless the file can be read: OpenSSL does not tell which of two files
    it could not read."""
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL in it
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidSetting(
            f"The TLS {what} {path} cannot be read: {reason}.",
            remedy="Check the path, and who may read the file.",
        ) from None


def _reason(problem: ssl.SSLError) -> str:
    return f": {problem.reason.replace('_', ' ').lower()}" if problem.reason else ""
