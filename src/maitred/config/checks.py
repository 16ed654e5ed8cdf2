"""Checks of settings that are valid one by one but wrong together, or wrong on this machine."""

from __future__ import annotations

import os
from ipaddress import ip_network
from typing import TYPE_CHECKING

from maitred.config.cluster_checks import check_cluster
from maitred.errors import InvalidArgument, InvalidName, InvalidSetting
from maitred.routing.gradual import GradualChange
from maitred.routing.keys import check_batch_size
from maitred.routing.names import check_name
from maitred.security.hosts import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.settings import Jwt, Node, Tls

PORT_MAX = 65_535

ENVELOPE_BYTES = 64 * 1024
"""Bytes of a frame reserved for what is not payload: names, headers, a deadline. It is generous."""

STORES = ("postgresql://", "postgres://")
"""Prefixes of a store's address; PostgreSQL's own tools accept both."""

EVERY = "*"
"""Stands for every queue: of a namespace, or of the node."""


def check(node: Node, sources: Mapping[str, str] | None = None) -> None:
    """Raise `InvalidSetting` for settings that cannot work; `sources` tells where each came
    from."""
    origin = _Origins(sources or {})
    _check_ports(node, origin)
    _check_sizes(node, origin)
    _check_restarts(node, origin)
    _check_spread_batch(node, origin)
    _check_store(node, origin)
    _check_worker_addresses(node, origin)
    for name in node.queues:
        _check_queue(name, origin)
    for name in node.namespaces:
        _check_namespace(name, origin)
    if node.users or node.users_file is not None:
        _check_users(node, origin)
    if node.tls is not None and node.tls.client_users:
        _check_client_users(node, node.tls, origin)
    if node.jwt is not None:
        _check_jwt(node.jwt, origin)
    _check_open(node, origin)
    if node.tls is not None:
        from maitred.security.tls import server_context

        server_context(node.tls)
    check_cluster(node, origin)


def cores() -> int:
    """Return the number of cores that this process may use, which is the default number of
    shards."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Origins:
    """Appends the source of a setting to its name."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def __call__(self, name: str) -> str:
        return f"{name} (from {self._sources[name]})" if name in self._sources else name

    def source(self, name: str) -> str:
        return self._sources.get(name, "the settings")


def _check_ports(node: Node, origin: _Origins) -> None:
    shards = node.shards or cores()
    # Above the shards' ports, one for stock drivers, and one at which other nodes probe this one.
    taken = shards + 2 if node.store is not None and node.cluster.enabled else shards
    if node.port and node.port + taken > PORT_MAX:
        raise InvalidSetting(
            f"{origin('port')} is {node.port:,}, and each of the {shards:,} {origin('shards')} "
            f"takes one more above it, which ends beyond {PORT_MAX:,}.",
            remedy=f"Use a port up to {PORT_MAX - taken:,}.",
        )


def _check_sizes(node: Node, origin: _Origins) -> None:
    limits = node.limits
    if limits.payload_bytes + ENVELOPE_BYTES > limits.frame_bytes:
        raise InvalidSetting(
            f"{origin('limits.payload_bytes')} is {limits.payload_bytes:,}, and such a payload can "
            f"never arrive: {origin('limits.frame_bytes')} is {limits.frame_bytes:,}, and needs "
            f"{ENVELOPE_BYTES:,} for what is around the payload.",
            remedy=f"Raise limits.frame_bytes to {limits.payload_bytes + ENVELOPE_BYTES:,}, or "
            "lower limits.payload_bytes.",
        )


def _check_restarts(node: Node, origin: _Origins) -> None:
    restarts = node.restarts
    if restarts.first_seconds > restarts.longest_seconds:
        raise InvalidSetting(
            f"{origin('restarts.first_seconds')} is {restarts.first_seconds:g}, more than "
            f"{origin('restarts.longest_seconds')}, which is {restarts.longest_seconds:g}.",
            remedy="The first pause is the shortest one.",
        )


def _check_spread_batch(node: Node, origin: _Origins) -> None:
    try:
        GradualChange.parse(node.spread_batch, check_batch_size)
    except InvalidArgument as problem:
        raise InvalidSetting(
            f"{origin('spread_batch')} cannot be used. {problem.sentence}", remedy=problem.remedy
        ) from None


def _check_store(node: Node, origin: _Origins) -> None:
    if node.store is not None and not node.store.startswith(STORES):
        # The value is not shown: it may be a password.
        raise InvalidSetting(
            f"{origin('store')} is not the address of a store.",
            remedy="It begins with postgresql://; without it, tasks are kept in files in the data "
            "directory.",
        )


def _check_worker_addresses(node: Node, origin: _Origins) -> None:
    for network in node.worker_addresses.networks:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise InvalidSetting(
                f"{origin('worker_addresses.networks')} has {network!r}, which is not a network.",
                remedy="Write an address and the length of its prefix: '10.0.0.0/8'.",
            ) from None


def _check_queue(name: str, origin: _Origins) -> None:
    """Refuse settings for a queue that cannot exist: they would never apply, without notice."""
    if name == EVERY:
        return
    namespace, slash, queue = name.partition("/")
    remedy = "Name one queue ('shop/orders'), all of a namespace ('shop/*'), or all ('*')."
    where = f"{origin('queues')} has settings for {name!r}"
    if not slash:
        raise InvalidSetting(f"{where}, which is not namespace/queue.", remedy=remedy)
    if EVERY in namespace or (EVERY in queue and queue != EVERY):
        raise InvalidSetting(f"{where}, but names cannot be patterns.", remedy=remedy)
    try:
        check_name("namespace", namespace)
        check_name("queue", queue)
    except InvalidName as problem:
        raise InvalidSetting(f"{where}. {problem.sentence}", remedy=remedy) from None


def _check_namespace(name: str, origin: _Origins) -> None:
    """Refuse quotas for a namespace that cannot exist: they would never apply, without notice."""
    if name == EVERY:
        return
    remedy = "Name one namespace ('shop'), or all of them ('*')."
    where = f"{origin('namespaces')} has quotas for {name!r}"
    if EVERY in name:
        raise InvalidSetting(f"{where}, but names cannot be patterns.", remedy=remedy)
    try:
        check_name("namespace", name)
    except InvalidName as problem:
        raise InvalidSetting(f"{where}. {problem.sentence}", remedy=remedy) from None


def _check_users(node: Node, origin: _Origins) -> None:
    from maitred.security.directory import Directory
    from maitred.security.users import check_user

    for name, user in node.users.items():
        check_user(name, user, origin.source("users"))
    if node.users_file is not None:
        Directory(node)


def _check_client_users(node: Node, tls: Tls, origin: _Origins) -> None:
    from maitred.security.certificates import KINDS

    where = origin("tls.client_users")
    for name in tls.client_users:
        kind, colon, value = name.partition(":")
        if kind not in KINDS or not colon or not value:
            raise InvalidSetting(
                f"{where} has {name!r}, which is not a name in a certificate.",
                remedy=f"Write the kind of name before it: one of {', '.join(KINDS)} and a colon.",
            )
    if tls.client_authorities is None:
        raise InvalidSetting(
            f"{where} maps names in certificates, but no authority is set for those of clients.",
            remedy="Set tls.client_authorities.",
        )
    if not node.authenticates:
        raise InvalidSetting(
            f"{where} maps names in certificates to users, but the node has no users.",
            remedy="Configure users; they need a secret as well, which no one has to know.",
        )


def _check_jwt(jwt: Jwt, origin: _Origins) -> None:
    from maitred.security.jwt_keys import KeySource, check_url
    from maitred.security.users import check_namespaces

    if (jwt.jwks_file is None) == (jwt.jwks_url is None):
        raise InvalidSetting(
            f"{origin('jwt')} has to say where the keys of its issuer are, in one place.",
            remedy="Set jwt.jwks_file or jwt.jwks_url.",
        )
    if not jwt.audience:
        raise InvalidSetting(
            f"{origin('jwt.audience')} is empty: no token could be for this node.",
            remedy="Name the audience that the issuer puts into tokens for it.",
        )
    if jwt.jwks_url is not None:
        check_url(jwt.jwks_url)
    for value, granted in jwt.permissions.items():
        check_namespaces(f"jwt.permissions.{value} (from {origin.source('jwt')})", granted)
    KeySource(jwt)


def _check_open(node: Node, origin: _Origins) -> None:
    if node.authenticates or node.public_without_auth:
        return
    hosts = {"gateway.host": node.gateway.host} if node.gateway.enabled else {}
    for name, host in (hosts | {"host": node.host}).items():
        if not is_loopback(host):
            raise InvalidSetting(
                f"{origin(name)} is {host!r}, where others can reach it, and there are no users: "
                "any caller that connects could do anything.",
                remedy="Configure users (`maitred hash-secret` makes their secrets), or accept it "
                "with public_without_auth = true or `--public-without-auth`.",
            )
