"""Clients of real shards that are a cluster: what they agree on, and who is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.client.address import parse_address, settings_of
from maitred.client.client import AsyncClient
from maitred.client.connection_attempt import MemberTerms
from maitred.client.credentials import ClusterLogin
from maitred.errors import PermissionDenied, Unauthenticated
from maitred.membership.view import MemberState
from maitred.protocol.queries import Allocate
from maitred.security.users import GATEWAY
from maitred.settings import User
from maitred.surroundings import Surroundings
from tests.client.nodes import QUICK, until
from tests.node.clusters import SECRET, cluster
from tests.node.in_process import GATEWAY_SECRET, in_a_loop
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.clusters import ClusterUnderTest

USERS = {"ann": User(secret=cheaply("a"), permissions={"*": ["admin", "query"]})}


def url(here: ClusterUnderTest, *nodes: int, user: str = "") -> str:
    hosts = ",".join(f"127.0.0.1:{here.nodes[number].port}" for number in nodes or (0,))
    return f"maitred://{user}{hosts}"


@in_a_loop
async def test_clients_and_shards_agree_and_nothing_is_forwarded(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, 3, shards=2) as here,
        maitred.connect(url(here), **QUICK) as client,
    ):
        await client.members_known()
        await client.covered()
        view = here.shard(0).view
        assert client.view == view
        for number in range(40):
            await client.echo("n", f"q{number}", b"x", partition=number % 5)
        statistics = client.statistics()
        assert statistics.misroutes == statistics.fallbacks == statistics.retries == 0
        assert [len(node.covered) for node in client.nodes()] == [2, 2, 2]
        # A node drains: the clients hear of it from the shards, and nothing is forwarded either.
        draining = here.view(2, states={1: MemberState.DRAINING})
        here.adopt(draining)
        await until(client, lambda: client.view == draining)
        asked = [one.requests for one in client.statistics().nodes]
        for number in range(40):
            await client.echo("n", f"q{number}", b"x", partition=number % 5)
        statistics = client.statistics()
        assert statistics.misroutes == statistics.fallbacks == statistics.retries == 0
        names = [node.address for node in client.nodes()]
        at = names.index(f"127.0.0.1:{here.nodes[1].port}")
        assert statistics.nodes[at].requests == asked[at]


@in_a_loop
async def test_a_client_with_an_older_view_is_corrected(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, 2, adopted=False) as here,
        maitred.connect(url(here), **QUICK) as client,
    ):
        await client.covered()
        alone = here.view(1, nodes=[0])
        here.adopt(alone)
        await until(client, lambda: client.view == alone)
        both = here.view(2)
        queue = here.queue_of(1, by=both)
        here.adopt(both)  # the client's request and the view may cross
        assert (await client.echo("n", queue, b"x")).payload == b"x"
        await until(client, lambda: client.view == both)
        await client.covered()
        assert (await client.echo("n", queue, b"y")).payload == b"y"
        assert client.statistics().nodes[-1].requests + client.statistics().nodes[0].requests == 2


def gateway(here: ClusterUnderTest, secret: str = SECRET, **settings: Any) -> AsyncClient:  # noqa: ANN401
    """A client with the credentials of the first node's gateway."""
    address = parse_address(url(here, user=f"{GATEWAY}:{GATEWAY_SECRET}@"))
    surroundings = Surroundings.real()
    login = ClusterLogin(bytes.fromhex(secret), "gateway", surroundings.secret)
    terms = settings_of(address, {**QUICK, **settings})
    return AsyncClient(address, terms, surroundings, members=MemberTerms(login))


def _for_ann(queue: str) -> Allocate:
    return Allocate("n", queue, 1, 0, 0, 0, bytes(16), 1, 2, 0.0, "ann", do_not_queue=True)


@in_a_loop
async def test_the_gateway_of_a_node_is_one_at_all_nodes(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, 2, users=USERS) as here,
        await gateway(here).open() as client,
    ):
        await client.members_known()
        await client.covered()
        for number in range(2):
            queue = here.queue_of(number)
            # It may ask for slots in the name of a user, which users may not.
            for _ in range(2):
                with pytest.raises(maitred.MaitredError) as refused:
                    await client.request(_for_ann(queue))
                assert not isinstance(refused.value, PermissionDenied | Unauthenticated)
        assert client.statistics().fallbacks == 0


@in_a_loop
async def test_a_gateway_of_another_cluster_is_not_let_in(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, 2, users=USERS) as here,
        await gateway(here, "00" * 32).open() as client,
    ):
        await client.members_known()
        other = next(
            node for node in client.nodes() if node.address.endswith(f":{here.nodes[1].port}")
        )
        await until(client, lambda: client._router.nodes.find(other.address).problem is not None)
        problem = client._router.nodes.find(other.address).problem
        assert isinstance(problem, Unauthenticated)
        # Its own node forwards for it.
        assert (await client.echo("n", here.queue_of(1), b"x")).payload == b"x"
