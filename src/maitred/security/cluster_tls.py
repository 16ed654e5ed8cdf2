"""TLS between the nodes of a cluster: the context that dials, and a check at the start.

A node shows the certificate that it shows to clients (`tls`), and verifies the other node's by the
authority of the cluster (`cluster.authorities`) and the host that the other announced.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maitred.errors import InternalError, InvalidSetting
from maitred.security.tls import client_context, server_context

if TYPE_CHECKING:
    from maitred.settings import Tls

_EXPIRED: Final = {9, 10}
"""OpenSSL's codes for a certificate that is not valid yet, and one that has expired."""
_WRONG_HOST: Final = {62, 64}
"""OpenSSL's codes for a certificate of another host name, and of another address."""

_TURNS_MAX: Final = 10
"""More exchanges than any handshake takes."""


def node_context(tls: Tls, authorities: str) -> ssl.SSLContext:
    """Return the context with which a node connects to other nodes of its cluster."""
    return client_context(authorities, tls.certificate, tls.key)


def check_certificate(tls: Tls, authorities: str, host: str) -> None:
    """Raise `InvalidSetting` unless another node of the cluster would accept this node's
    certificate at `host`, and this node would accept that certificate from another node.

    A TLS handshake of the node with itself, in memory, decides, so that the check verifies what a
    connection verifies.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(tls).wrap_bio(to_server, to_client, server_side=True)
    dialler = node_context(tls, authorities)
    client = dialler.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(_TURNS_MAX):
        try:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
        except ssl.SSLCertVerificationError as problem:
            raise _refused(tls, authorities, host, problem) from None
        except ssl.SSLError as problem:
            raise _failed(tls, authorities, problem) from None
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as problem:
            raise _not_a_client(tls, problem) from None
        return
    raise InternalError("A TLS handshake in memory does not end.")


def _refused(
    tls: Tls, authorities: str, host: str, problem: ssl.SSLCertVerificationError
) -> InvalidSetting:
    code = problem.verify_code
    again = "`maitred admin cluster init-tls` makes one for each host that you name."
    if code in _WRONG_HOST:
        return InvalidSetting(
            f"The TLS certificate {tls.certificate} is not valid for {host!r}, which this node "
            "announces: the other nodes would refuse it.",
            remedy=f"Announce a host that the certificate names, or get another. {again}",
        )
    if code in _EXPIRED:
        return InvalidSetting(
            f"The TLS certificate {tls.certificate}, or the authority in {authorities}, is not "
            f"valid now: {problem.verify_message}.",
            remedy=f"Check this machine's clock, and renew it if that is right. {again}",
        )
    return InvalidSetting(
        f"The TLS certificate {tls.certificate} is not signed by an authority in {authorities}: "
        f"{problem.verify_message}. The other nodes would refuse it.",
        remedy="Give all nodes the same cluster.authorities, and certificates that this authority "
        f"has signed, followed by the intermediate ones. {again}",
    )


def _not_a_client(tls: Tls, problem: ssl.SSLError) -> InvalidSetting:
    reason = getattr(problem, "verify_message", None) or problem.reason or str(problem)
    return InvalidSetting(
        f"The node would refuse its own certificate {tls.certificate} from another node: {reason}. "
        "Clients, and thus nodes, have to show a certificate of an authority in "
        f"{tls.client_authorities}.",
        remedy="Add the cluster's authority to tls.client_authorities; the certificate has to be "
        "one for servers and clients.",
    )


def _failed(tls: Tls, authorities: str, problem: ssl.SSLError) -> InvalidSetting:
    return InvalidSetting(
        f"The TLS certificate {tls.certificate} cannot be used between nodes with the authority "
        f"{authorities}: {problem.reason or problem}.",
        remedy="`maitred admin cluster init-tls` makes certificates that can.",
    )
