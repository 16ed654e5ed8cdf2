"""Shards of different nodes: a request that arrives at a wrong node is answered all the same."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
import trustme
from msgspec import structs

from maitred.errors import MaitredError, NotOwner, Unavailable
from maitred.matching.records import PartitionKey
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import MemberState
from maitred.node import dispatched, remote_peer
from maitred.protocol.cluster import HandedOver, HandOver
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import Echo, Echoed, HomeHint
from maitred.protocol.queries import Count, Counted
from tests.node.clusters import SECRET, cluster, member_of
from tests.node.in_process import GATED, LOOPS, in_a_loop, node, until
from tests.node.raw import cancel, echo, echoed_in, error_in, home_in, status, status_in

if TYPE_CHECKING:
    from pathlib import Path

    from msgspec import Struct

    from maitred.membership.view import ClusterView
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.remote_peer import RemotePeer
    from maitred.protocol.messages import AnyRequest
    from tests.node.clusters import ClusterUnderTest


def remote(there: ClusterUnderTest, from_: int, to: int, shard: int = 0) -> RemotePeer:
    """The link of one node's first shard to another node's shard."""
    here = there.shard(from_)
    owner = here.owner_number(there.nodes[to].member, shard)
    return cast("RemotePeer", here._peers.known[owner])


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_a_request_is_forwarded_to_another_node(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with cluster(tmp_path, 3, shards=2) as there:
        client = await there.nodes[0].ready()
        for number, running in enumerate(there.nodes):
            for shard in range(2):
                queue = there.queue_of(number, shard)
                answer = await client.ask(echo(queue, b"hi"))
                assert echoed_in(answer).payload == b"hi"
                assert echoed_in(answer).shard == shard
                home = None if (number, shard) == (0, 0) else HomeHint(str(running.identity), shard)
                assert home_in(answer) == home
        assert there.shard(0).forwarded == 5
        assert there.shard(2, 1).received_forwarded == 2  # the view, and the echo
        # They are no clients, and the node that they come from is not refused for their number.
        assert there.shard(2, 1).client_connections == 0
        assert there.shard(0).statistics()["links"] == {"remote": 4, "connected": 4}


@in_a_loop
async def test_a_node_that_is_not_active_forwards_everything(tmp_path: Path) -> None:
    for state in (MemberState.JOINING, MemberState.DRAINING):
        path = tmp_path / state.value
        path.mkdir()
        async with cluster(path, 2, adopted=False) as there:
            view = there.view(1, states={0: state})
            there.adopt(view)
            client = await there.nodes[0].ready()
            for attempt in range(5):
                assert echoed_in(await client.ask(echo(f"any{attempt}"))).shard == 0
            assert there.shard(0).forwarded == 5


@in_a_loop
async def test_without_a_view_a_node_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, adopted=False) as there:
        client = await there.nodes[0].ready()
        problem = error_in(await client.ask(echo("q")))
        assert problem.code == "unavailable"
        assert "joining the cluster" in problem.sentence
        assert status_in(await client.ask(status(0))).shard == 0
        there.adopt(there.view(1, states={0: MemberState.DRAINING}))
        problem = error_in(await client.ask(echo("q")))
        assert problem.code == "unavailable"
        assert "no active node" in problem.sentence
        there.adopt(there.view(2))
        assert echoed_in(await client.ask(echo("q"))).shard == 0
        assert there.shard(0).view_version == 2


@in_a_loop
async def test_views_never_go_backwards(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        shard = there.shard(0)
        seen: list[tuple[int, int]] = []

        def listen(old: ClusterView | None, new: ClusterView) -> None:
            seen.append((0 if old is None else old.version, new.version))

        shard.view_listeners.append(listen)
        there.adopt(there.view(5), 0)
        there.adopt(there.view(5, [0]), 0)
        there.adopt(there.view(4, [0]), 0)
        assert shard.view is not None
        assert len(shard.view.members) == 2
        other = structs.replace(there.view(6, [0]), cluster="another")
        shard.adopt(other)
        assert shard.view_version == 5
        assert seen == [(1, 5)]
        assert "view of another cluster ignored" in there.nodes[0].log.events("error")


@in_a_loop
async def test_a_listener_that_fails_hurts_no_other(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as there:
        shard = there.shard(0)
        seen: list[int] = []

        def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        shard.view_listeners.extend([fail, lambda _, new: seen.append(new.version)])
        shard.adopt(there.view(2))
        assert seen == [2]
        assert "a listener of the view failed" in there.nodes[0].log.events("error")


@in_a_loop
async def test_a_node_that_was_declared_dead_serves_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        client = await there.nodes[0].ready()
        mine, others = there.queue_of(0), there.queue_of(1)
        there.adopt(there.view(2, [1]), 0)
        for queue in (mine, others):
            problem = error_in(await client.ask(echo(queue)))
            assert problem.code == "not-owner"
            assert "declared this node dead" in problem.sentence
        assert status_in(await client.ask(status(0))).shard == 0
        assert "the cluster has declared this node dead" in there.nodes[0].log.events("error")


@in_a_loop
async def test_a_sender_with_an_old_view_learns_the_new_one(tmp_path: Path) -> None:
    """It asks the previous owner, which tells it the view and refuses; the next owner answers."""
    async with cluster(tmp_path, 3) as there:
        new = there.view(2, states={1: MemberState.DRAINING})
        queue = next(
            one
            for one in (there.queue_of(1, skip=attempt) for attempt in range(100))
            if owner_by(there, new, one) == 2
        )
        there.adopt(new, 1, 2)
        client = await there.nodes[0].ready()
        answer = await client.ask(echo(queue))
        assert home_in(answer) == HomeHint(str(there.nodes[2].identity), 0)
        assert there.shard(0).view_version == 2
        assert there.shard(1).errors == {"not-owner": 1}


@in_a_loop
async def test_a_sender_that_owns_it_by_the_newer_view_serves_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        queue = there.queue_of(1)
        there.adopt(there.view(2, states={1: MemberState.DRAINING}), 1)
        client = await there.nodes[0].ready()
        answer = await client.ask(echo(queue, b"hi"))
        assert echoed_in(answer).payload == b"hi"
        assert home_in(answer) is None
        assert there.shard(0).view_version == 2
        # Held echoes are served by a coroutine, and refused ones are refused as always.
        there.adopt(there.view(3), 0, 1)
        there.adopt(there.view(4, states={1: MemberState.DRAINING}), 1)
        assert echoed_in(await client.ask(echo(queue, hold=1))).shard == 0
        there.adopt(there.view(5), 0, 1)
        there.adopt(there.view(6, states={1: MemberState.DRAINING}), 1)
        limit = there.shard(0).limits.payload_bytes
        problem = error_in(await client.ask(echo(queue, bytes(limit + 1))))
        assert problem.code == "payload-too-large"


@in_a_loop
async def test_a_node_that_stops_tells_who_is_next(tmp_path: Path) -> None:
    """A sender with an old view is sent on, not refused."""
    async with cluster(tmp_path, 2) as there:
        queue = there.queue_of(1)
        client = await there.nodes[0].ready()
        await client.ask(echo(queue))
        there.adopt(there.view(2, states={1: MemberState.DRAINING}), 1)
        there.shard(1).draining = True
        assert home_in(await client.ask(echo(queue))) is None
        assert there.shard(0).view_version == 2
        # It still hears of views, and refuses what it would own.
        there.adopt(there.view(3), 0)
        problem = error_in(await client.ask(echo(queue)))
        assert problem.code == "draining"
        assert there.shard(1).view_version == 3


@in_a_loop
async def test_a_receiver_with_an_old_view_is_told_the_new_one_first(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        there.adopt(there.view(2, states={1: MemberState.DRAINING}))
        queue = there.queue_of(0)
        newer = there.view(3, states={0: MemberState.DRAINING})
        there.adopt(newer, 0)
        client = await there.nodes[0].ready()
        assert echoed_in(await client.ask(echo(queue))).shard == 0
        assert there.shard(1).view_version == 3
        assert there.shard(1).errors == {}


@in_a_loop
async def test_shards_of_one_node_tell_each_other_too(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, shards=2) as there:
        there.shard(0).adopt(there.view(2))
        client = await there.nodes[0].ready()
        assert echoed_in(await client.ask(echo(there.queue_of(0, 1)))).shard == 1
        assert there.shard(0, 1).view_version == 2
        # Once is enough for each link.
        assert echoed_in(await client.ask(echo(there.queue_of(0, 1)))).shard == 1
        assert there.shard(0, 1).received_forwarded == 3


@in_a_loop
async def test_an_owner_that_refuses_by_the_same_view_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, 2) as there:
        asked: list[float] = []
        owner = there.shard(1)

        def refuse(_message: Echo) -> Struct:
            asked.append(owner.loop.time())
            if len(asked) == 3:
                return Echoed(b"at last", 0)
            raise NotOwner("The partition was let go.")

        monkeypatch.setitem(owner.handlers, Opcode.ECHO, refuse)
        client = await there.nodes[0].ready()
        queue = there.queue_of(1)
        assert echoed_in(await client.ask(echo(queue))).payload == b"at last"
        assert asked[1] - asked[0] >= dispatched.FIRST_PAUSE_SECONDS * 0.9
        assert len(asked) == 3


@in_a_loop
async def test_it_is_not_asked_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatched, "RETRY_SECONDS", 0.1)
    async with cluster(tmp_path, 2) as there:
        asked = []

        def refuse(_message: Echo) -> Struct:
            asked.append(1)
            raise NotOwner("The partition was let go.")

        monkeypatch.setitem(there.shard(1).handlers, Opcode.ECHO, refuse)
        client = await there.nodes[0].ready()
        queue = there.queue_of(1)
        problem = error_in(await client.ask(echo(queue)))
        assert problem.code == "not-owner"
        assert 2 <= len(asked) < 20
        # Nor past the deadline of the request, nor when the caller takes it back.
        monkeypatch.setattr(dispatched, "RETRY_SECONDS", 1000.0)
        answer = await client.ask(echo(queue, timeout=30))
        assert error_in(answer).code in {"not-owner", "deadline-exceeded"}
        client.write(echo(queue, stream=5))
        before = len(asked)
        await until(lambda: len(asked) > before + 1)
        client.write(cancel(5))
        assert error_in(await client.frame()).code in {"cancelled", "not-owner"}


@in_a_loop
async def test_a_request_of_a_shard_follows_the_view_as_well(tmp_path: Path) -> None:
    """Also to the shard itself, if it owns the partition by then."""
    async with cluster(tmp_path, 2) as there:
        for running in there.nodes:
            for shard in running.shards:
                number = int(running.member, 16)
                shard.holders[Opcode.ECHO] = partial(answer_as, number)
                del shard.handlers[Opcode.ECHO]
        queue = there.queue_of(1)
        assert (await asked(there, 0, Echo("n", queue, 1, 0, 0, b""))) == Echoed(b"", 2)
        there.adopt(there.view(2, states={1: MemberState.DRAINING}), 1)
        assert (await asked(there, 0, Echo("n", queue, 1, 0, 0, b""))) == Echoed(b"", 1)
        # One that names a shard goes there, whoever owns the partition.
        there.shard(1).holders[Opcode.HAND_OVER] = lambda _, held: held.answer(
            HandedOver(released=True)
        )
        to = there.shard(0).owner_number(there.nodes[1].member, 0)
        assert there.shard(0).member_of(to) == there.nodes[1].member
        assert there.shard(0).member_of(0) == there.nodes[0].member
        given = await asked(there, 0, HandOver("n", queue, 1, 0, 0), to)
        assert given == HandedOver(released=True)
        there.shard(1).holders[Opcode.COUNT] = lambda message, held: held.answer(
            Counted(message.shard)
        )
        assert (await asked(there, 0, Count(99, 0, {}, {}), to)) == Counted(0)


@in_a_loop
async def test_a_request_of_a_shard_without_a_view_is_refused_later(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, shards=2, adopted=False) as there:
        refused = await asked(there, 0, Echo("n", "q", 1, 0, 0, b""))
        assert isinstance(refused, Unavailable)
        shard = there.shard(0)
        assert shard.moves_at(PartitionKey("n", "q", 1, 0)) == inf
        assert shard.owners.everywhere() == [0, 1]
        there.adopt(there.view(1))
        names = [shard.owner_name(owner) for owner in shard.owners.everywhere()]
        port = there.nodes[1].port
        elsewhere = [f"Shard {one} of 127.0.0.1:{port}" for one in range(2)]
        assert sorted(names) == sorted(["Shard 0", "Shard 1", *elsewhere])


@in_a_loop
async def test_an_owner_within_a_gradual_change(tmp_path: Path) -> None:
    """It is not settled before its turn has come."""
    async with cluster(tmp_path, 2, adopted=False) as there:
        change = '{"old": 0, "new": 4, "start": 1000, "end": 4000000000}'
        there.adopt(there.view(1, spread_batch=change))
        client = await there.nodes[0].ready()
        shard = there.shard(0)
        for partition in range(8):
            answer = await client.ask(echo("q", partition=partition))
            assert echoed_in(answer).shard == 0
            moves = shard.moves_at(PartitionKey("n", "q", 1, partition))
            assert (moves == inf) == (("n", "q", 1, partition) in shard.settled)
        assert len(shard.settled) < 8


@in_a_loop
async def test_nodes_of_a_cluster_talk_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 0.0)
    authority, other = trustme.CA(), trustme.CA()
    listens = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(listens)
    dials = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    authority.configure_trust(dials)
    strange = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    other.configure_trust(strange)
    for number, (context, code) in enumerate(((dials, ""), (strange, "unavailable"))):
        path = tmp_path / str(number)
        path.mkdir()
        own = {"peer_tls": partial(passed, context)}
        async with cluster(path, 2, tls=listens, client_tls=dials, of_cluster=own) as there:
            client = await there.nodes[0].ready()
            answer = await client.ask(echo(there.queue_of(1), bytes(100_000)))
            if code:
                assert error_in(answer).code == code
            else:
                assert len(echoed_in(answer).payload) == 100_000


def passed(context: ssl.SSLContext) -> ssl.SSLContext:
    return context


@in_a_loop
async def test_the_deadline_of_a_request_that_waits_for_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 1000.0)
    async with cluster(tmp_path, 2) as there:
        queue = there.queue_of(1)
        there.nodes[1].kill(0)
        client = await there.nodes[0].ready()
        assert error_in(await client.ask(echo(queue, timeout=20))).code == "deadline-exceeded"


@in_a_loop
async def test_a_node_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 0.1)
    async with cluster(tmp_path, 2) as there:
        queue = there.queue_of(1)
        there.nodes[1].kill(0)
        client = await there.nodes[0].ready()
        problem = error_in(await client.ask(echo(queue)))
        assert problem.code == "unavailable"
        assert f"Shard 0 of 127.0.0.1:{there.nodes[1].port}, which owns this" in problem.sentence
        assert "another one takes its partitions over" in (problem.remedy or "")
        assert "shard of another node not reachable" in there.nodes[0].log.events("warning")
        # A shard that comes back is used again.
        shard = await there.nodes[1].start_again(0)
        shard.adopt(there.view(1))
        assert echoed_in(await client.ask(echo(queue))).shard == 0


@in_a_loop
async def test_requests_that_wait_for_a_link_are_placed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 1000.0)
    async with cluster(tmp_path, 2) as there:
        queue = there.queue_of(1)
        there.nodes[1].kill(0)
        client = await there.nodes[0].ready()
        client.write(echo(queue, b"first", stream=1) + echo(queue, b"second", stream=2))
        there_is = there.shard(0)
        to_dead: list[Any] = []
        there_is.ask(
            HandOver("n", queue, 1, 0, 0),
            1000.0,
            to_dead.append,
            there_is.owner_number(there.nodes[1].member, 0),
        )
        await until(lambda: len(remote(there, 0, 1)._waiting) == 3)
        there.adopt(there.view(2, [0]), 0)
        answers = await client.frames(2)
        assert {echoed_in(one).payload for one in answers.values()} == {b"first", b"second"}
        await until(lambda: bool(to_dead))
        assert isinstance(to_dead[0], Unavailable)
        with pytest.raises(Unavailable):
            there_is.owner_number("nobody", 0)


@in_a_loop
async def test_a_view_that_another_shard_told_is_followed_by_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next node to forward a request may know of a death before the own supervisor tells it."""
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 1000.0)
    async with cluster(tmp_path, 3) as there:
        view = there.view(2, [0, 2])
        homes, queues = ClusterHomes(view), (there.queue_of(1, skip=skip) for skip in range(100))
        survivor = there.nodes[0].member
        queue = next(
            one for one in queues if homes.home(("n", one, 1, 0), 0.0).member.id == survivor
        )
        there.nodes[1].kill(0)
        client = await there.nodes[0].ready()
        client.write(echo(queue, b"waits", stream=1))
        await until(lambda: there.shard(0).forwarded == 1)
        assert len(remote(there, 0, 1)._waiting) == 1
        there.adopt(view, 2)
        # The third node forwards a request, and tells the view first.
        other = await there.nodes[2].ready()
        assert echoed_in(await other.ask(echo(queue, b"forwarded"))).payload == b"forwarded"
        assert there.shard(0).view_version == 2
        assert echoed_in(await client.frame()).payload == b"waits"
        assert there.shard(0).statistics()["links"] == {"remote": 0, "connected": 0}


@in_a_loop
async def test_requests_in_flight_at_a_lost_node_have_an_unknown_outcome(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        held = asyncio.Event()
        there.nodes[1].hold_until(held.wait)
        client = await there.nodes[0].ready()
        client.write(echo(there.queue_of(1), hold=GATED))
        await until(lambda: there.shard(1).in_flight == 1)
        # The cluster says so before the network does: the node may be frozen.
        there.adopt(there.view(2, [0]), 0)
        problem = error_in(await client.frame())
        assert problem.code == "connection-lost"
        await until(lambda: there.shard(1).in_flight == 0)
        assert there.shard(0).statistics()["links"] == {"remote": 0, "connected": 0}
        held.set()


@in_a_loop
async def test_the_long_polls_of_a_dead_node_end(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as there:
        held = asyncio.Event()
        there.nodes[1].hold_until(held.wait)
        client = await there.nodes[0].ready()
        client.write(echo(there.queue_of(1), hold=GATED))
        await until(lambda: there.shard(1).in_flight == 1)
        there.adopt(there.view(2, [1, 2]), 1, 2)
        await until(lambda: there.shard(1).in_flight == 0)
        held.set()


@in_a_loop
async def test_a_link_that_falls_silent_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(remote_peer, "PROBE_SECONDS", 0.05)
    async with cluster(tmp_path, 2) as there:
        held = asyncio.Event()
        there.nodes[1].hold_until(held.wait)
        client = await there.nodes[0].ready()
        queue = there.queue_of(1)
        client.write(echo(queue, hold=GATED))
        await until(lambda: there.shard(1).in_flight == 1)
        link = remote(there, 0, 1)._link
        assert link is not None
        # It answers probes, so it lives, however long the request takes.
        peers = there.shard(0)._peers
        for _ in range(3):
            peers.look(there.shard(0).loop.time())
            await until(lambda: cast("Any", link)._probe is None)
        assert remote(there, 0, 1)._link is link
        (accepted,) = [one for one in there.shard(1).connections if one.member]
        accepted.transport.pause_reading()
        peers.look(there.shard(0).loop.time())
        assert error_in(await client.frame()).code == "connection-lost"
        held.set()


@in_a_loop
async def test_a_connection_of_a_node_that_fell_silent_is_closed(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as there:
        client = await there.nodes[0].ready()
        await client.ask(echo(there.queue_of(1)))
        (accepted,) = [one for one in there.shard(1).connections if one.member]
        assert repr(accepted).startswith(
            f"<NodeConnection of another shard of member {there.nodes[0].member}:"
        )
        accepted.look_at_clock(accepted.arrived_at + 1.0)
        assert accepted in there.shard(1).connections
        accepted.look_at_clock(accepted.arrived_at + 1000.0)
        await until(lambda: accepted not in there.shard(1).connections)
        # The next request makes a new link.
        await client.ask(echo(there.queue_of(1)))


@in_a_loop
async def test_a_node_of_another_cluster_is_not_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 0.0)
    async with cluster(tmp_path, 2, secrets={1: "00" * 32}) as there:
        client = await there.nodes[0].ready()
        problem = error_in(await client.ask(echo(there.queue_of(1))))
        assert problem.code == "unavailable"
        (said,) = [one for one in there.nodes[0].log.lines if "not reachable" in one[1]]
        assert "did not prove to be member" in str(said[2]["error"])
        assert there.shard(1).received_forwarded == 0


@in_a_loop
async def test_a_later_start_of_a_node_is_another_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address in the view is that of a member that is gone."""
    monkeypatch.setattr(remote_peer, "WAIT_SECONDS", 0.0)
    async with cluster(tmp_path, 2, adopted=False) as there:
        old = member_of(there.nodes[1], id_="f" * 16)
        view = structs.replace(there.view(1, [0]), members=(member_of(there.nodes[0]), old))
        there.shard(0).adopt(view)
        client = await there.nodes[0].ready()
        for attempt in range(50):
            answer = await client.ask(echo(f"q{attempt}"))
            if answer.opcode == Opcode.ERROR:
                assert error_in(answer).code == "unavailable"
                break
        else:
            raise AssertionError("every queue was here")


@in_a_loop
async def test_a_node_without_a_cluster_takes_no_view(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        with pytest.raises(MaitredError, match="belongs to no cluster"):
            running.shard.adopt(cast("Any", None))
        assert running.shard.trusted()
        assert running.shard.view is None


@in_a_loop
async def test_the_lease_is_trusted_until_it_is_over(tmp_path: Path) -> None:
    own = {"identity": UUID(int=7), "member": "a" * 16, "cluster_secret": SECRET}
    async with node(tmp_path, of_cluster=own) as running:
        shard = running.shard
        clock = shard._surroundings.boot_clock
        assert clock is not None
        assert not shard.trusted()
        shard.renew_lease(clock() + 1000)
        assert shard.trusted()
        shard.renew_lease(clock() - 1)  # what comes late changes nothing
        assert shard.trusted()
        shard.membership.lease_until = clock() - 1
        assert not shard.trusted()


@in_a_loop
async def test_a_lease_that_ran_out_before_it_was_renewed_is_remembered(tmp_path: Path) -> None:
    own = {"identity": UUID(int=7), "member": "a" * 16, "cluster_secret": SECRET}
    async with node(tmp_path, of_cluster=own) as running:
        shard = running.shard
        clock = shard._surroundings.boot_clock
        assert clock is not None
        shard.renew_lease(clock() + 1000)  # the first one
        shard.renew_lease(clock() + 2000)
        assert shard.lapses == 0
        shard.membership.lease_until = clock() - 1
        shard.renew_lease(clock() + 3000)
        shard.renew_lease(clock() + 4000)
        assert shard.trusted()
        assert shard.lapses == 1


def answer_as(number: int, message: Echo, held: DeferredReply) -> None:
    held.answer(Echoed(message.payload, number))


def owner_by(there: ClusterUnderTest, view: ClusterView, queue: str) -> int:
    """The number of the node that owns the queue's root by this view."""
    id_ = ClusterHomes(view).home(("n", queue, 1, 0), 0.0).member.id
    return next(at for at, one in enumerate(there.nodes) if one.member == id_)


async def asked(
    there: ClusterUnderTest, number: int, message: AnyRequest, owner: int | None = None
) -> Struct | MaitredError:
    """What a shard answers another one."""
    outcomes: list[Struct | MaitredError] = []
    there.shard(number).ask(message, 20.0, outcomes.append, owner)
    assert not outcomes
    await until(lambda: bool(outcomes))
    return outcomes[0]
