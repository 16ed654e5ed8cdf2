"""The membership table in PostgreSQL: versions, votes, joining, and connections that are lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from maitred.errors import CannotStart, InternalError, StoreUnavailable
from maitred.logs import silent
from maitred.membership.view import ClusterMember, MemberState
from maitred.store.placement_terms import joined_terms
from maitred.store.postgres_members import LIVE_SECONDS, PostgresMembers, open_members
from tests.store.engines import awaited
from tests.store.failover import TIMELINE
from tests.store.logs import Heard
from tests.store.postgres_server import empty_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.membership.table import TableState

JOINING, ACTIVE = MemberState.JOINING, MemberState.ACTIVE
DRAINING, DEAD = MemberState.DRAINING, MemberState.DEAD


@pytest.fixture
def location(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    return empty_database(postgres_server)


def member(id_: str, port: int = 7000, node: str = "", host: str = "127.0.0.1") -> ClusterMember:
    return ClusterMember(
        id=id_,
        node=node or f"node of {id_}",
        host=host,
        port=port,
        member_port=port + 100,
        shards=2,
        shard_ports=(port + 1, port + 2),
        state=JOINING,
        release="1.2.3",
        versions=(4, 5),
    )


@asynccontextmanager
async def opened(location: str, cluster: str = "maitred") -> AsyncIterator[PostgresMembers]:
    table = await open_members(location, cluster, silent())
    try:
        yield table
    finally:
        await table.close()


async def joined(table: PostgresMembers, *ids: str) -> TableState:
    """Let members with ports 7000, 7010, ... join and become active."""
    for number, id_ in enumerate(ids):
        await table.join(member(id_, 7000 + 10 * number), "0", "wrap")
        await table.change(id_, JOINING, ACTIVE)
    return await table.read()


async def execute(location: str, statement: str, *, simple: bool = False) -> Any:  # noqa: ANN401
    connection = await asyncpg.connect(location)
    try:
        if simple:
            return await connection.execute(statement)
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def states(table: TableState) -> dict[str, MemberState]:
    return {one.id: one.state for one in table.view.members}


@awaited
async def test_a_cluster_begins_with_its_first_member(location: str) -> None:
    async with opened(location) as table:
        empty = await table.read()
        assert (empty.view.version, empty.view.members, empty.beats) == (0, (), {})
        began = await table.join(member("a"), '{"old":0,"new":8,"start":5,"end":9}', "steady")
        (one,) = began.view.members
        epoch = "SELECT extract(epoch FROM now())::double precision"
        assert one.since == pytest.approx(await execute(location, epoch), abs=60)
        assert one == ClusterMember(**{**_fields(member("a")), "since": one.since})
        assert (began.view.cluster, began.view.version) == ("maitred", 1)
        assert began.view.spread_batch == '{"old":0,"new":8,"start":5,"end":9}'
        assert (began.view.placement, began.beats, began.votes) == ("steady", {"a": 0}, ())
        assert await table.read() == began


def _fields(of: ClusterMember) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


@awaited
async def test_the_secret_is_made_once_and_is_the_same_for_all(location: str) -> None:
    async with opened(location) as one, opened(location) as two:
        secrets = await asyncio.gather(*[table.secret() for table in (one, two, one)])
        assert len(set(secrets)) == 1
        assert len(secrets[0]) == 32
        assert repr(secrets[0]) not in repr(one)
    async with opened(location) as later:
        await later.join(member("a"), "0", "wrap")
        assert await later.secret() == secrets[0]


@awaited
async def test_each_change_of_a_state_raises_the_version_once(location: str) -> None:
    async with opened(location) as table:
        assert (await table.join(member("a"), "0", "wrap")).view.version == 1
        active = await table.change("a", JOINING, ACTIVE)
        assert (active.view.version, states(active)) == (2, {"a": ACTIVE})
        assert (await table.beat("a", 0.5)).version == 2
        draining = await table.change("a", ACTIVE, DRAINING)
        assert (draining.view.version, states(draining)) == (3, {"a": DRAINING})
        back = await table.change("a", DRAINING, ACTIVE)
        assert (back.view.version, states(back)) == (4, {"a": ACTIVE})
        left = await table.change("a", ACTIVE, DEAD)
        assert (left.view.version, left.view.members, left.beats) == (5, (), {})


@awaited
async def test_a_state_changes_only_from_the_one_that_was_seen(location: str) -> None:
    async with opened(location) as one, opened(location) as two:
        await joined(one, "a", "b")
        results = await asyncio.gather(
            one.change("a", ACTIVE, DRAINING), two.change("a", ACTIVE, DEAD)
        )
        assert {result.view.version for result in results} == {5}
        again = await two.change("a", ACTIVE, DRAINING)
        assert again.view.version == 5
        # The dead never return, and nothing skips a state.
        await one.change("b", ACTIVE, DEAD)
        assert "b" not in states(await one.change("b", ACTIVE, DRAINING))
        for before, after in ((DEAD, ACTIVE), (JOINING, DRAINING), (DRAINING, JOINING)):
            with pytest.raises(InternalError):
                await one.change("b", before, after)


@awaited
async def test_heartbeats_are_counted_and_tell_of_all_others(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        assert (await table.beat("a", 0.25))[:3] == (6, {"a": 1, "b": 0, "c": 0}, True)
        await table.beat("a", 0.75)
        assert (await table.beat("b", 0.0))[:3] == (6, {"a": 2, "b": 1, "c": 0}, True)
        await table.change("c", ACTIVE, DEAD)
        assert (await table.beat("c", 0.0))[:3] == (7, {"a": 2, "b": 1}, False)
        assert (await table.beat("unknown", 0.0))[:3] == (7, {"a": 2, "b": 1}, False)
        assert (await table.read()).beats == {"a": 2, "b": 1}
    async with opened(location, "elsewhere") as other:
        assert (await other.beat("a", 0.0))[:3] == (0, {}, False)


@awaited
async def test_votes_of_active_members_kill(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        await table.join(member("d", 7090), "0", "wrap")
        await table.accuse("d", "c", beat=0, version=7, needed=2)  # which is only joining
        voted = await table.accuse("a", "c", beat=0, version=7, needed=2)
        assert voted.view.version == 7
        assert [(vote.accuser, vote.accused) for vote in voted.votes] == [("a", "c")]
        assert all(0 <= vote.age_seconds < 60 for vote in voted.votes)
        voted = await table.accuse("a", "c", beat=0, version=7, needed=2)
        assert (voted.view.version, len(voted.votes)) == (7, 1)
        dead = await table.accuse("b", "c", beat=0, version=7, needed=2)
        assert dead.view.version == 8
        assert "c" not in states(dead)
        assert dead.votes == ()
        # A late vote, and one that the dead one casts, change nothing.
        assert await table.accuse("a", "c", beat=0, version=8, needed=1) == dead
        assert await table.accuse("c", "a", beat=0, version=8, needed=1) == dead
        assert await table.accuse("a", "a", beat=0, version=8, needed=1) == dead


@awaited
async def test_a_heartbeat_voids_all_votes(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        await table.accuse("a", "c", beat=0, version=6, needed=2)
        await table.beat("c", 0.0)
        late = await table.accuse("b", "c", beat=0, version=6, needed=2)
        assert states(late)["c"] is ACTIVE
        assert [vote.accuser for vote in late.votes] == ["a"]
        fresh = await table.accuse("b", "c", beat=1, version=6, needed=2)
        assert states(fresh)["c"] is ACTIVE
        assert "c" not in states(await table.accuse("a", "c", beat=1, version=6, needed=2))


@awaited
async def test_a_vote_on_an_old_version_is_not_counted(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        stale = await table.accuse("a", "b", beat=0, version=5, needed=1)
        assert (stale.view.version, stale.votes, "b" in states(stale)) == (6, (), True)


@awaited
async def test_a_vote_expires(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        await table.accuse("a", "c", beat=0, version=6, needed=2)
        await execute(location, "UPDATE maitred.votes SET at = at - interval '121 seconds'")
        assert (await table.read()).votes == ()
        state = await table.accuse("b", "c", beat=0, version=6, needed=2)
        assert [vote.accuser for vote in state.votes] == ["b"]
        assert states(state)["c"] is ACTIVE
        assert "c" not in states(await table.accuse("a", "c", beat=0, version=6, needed=2))


@awaited
async def test_a_later_start_replaces_the_earlier_one_at_its_address(location: str) -> None:
    async with opened(location) as table:
        await table.join(member("a", node="n"), "0", "wrap")
        await table.change("a", JOINING, ACTIVE)
        await table.beat("a", 0.0)
        again = await table.join(member("b", node="n"), "8", "steady")
        assert (again.view.version, states(again)) == (3, {"b": JOINING})
        # It is the only member, so the terms are those that it brought.
        assert (again.view.spread_batch, again.view.placement) == ("8", "steady")
        assert not (await table.beat("a", 0.0)).alive
        # After an unknown outcome it joins again, as the same member.
        assert await table.join(member("b", node="n"), "8", "steady") == again


@awaited
async def test_two_live_nodes_cannot_announce_one_address(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maitred.store.postgres_members.ADDRESS_WATCH_SECONDS", 0.03)
    async with opened(location) as table:
        await joined(table, "a")

        async def keep_beating() -> None:
            while True:
                await table.beat("a", 0.0)

        beating = asyncio.create_task(keep_beating())
        async with opened(location) as other:
            with pytest.raises(CannotStart, match=r"127\.0\.0\.1:7000, and is alive") as raised:
                await other.join(member("b"), "0", "wrap")
            assert "`cluster.announce`" in str(raised.value)
            beating.cancel()
            assert states(await table.read()) == {"a": ACTIVE}
            # Without heartbeats it is gone, however young the last one is.
            assert states(await other.join(member("b"), "0", "wrap")) == {"b": JOINING}


@awaited
async def test_nodes_that_join_at_once_are_one_cluster(location: str) -> None:
    async with opened(location) as one, opened(location) as two, opened(location) as three:
        tables = (one, two, three)
        await asyncio.gather(
            *[
                table.join(member(id_, 7000 + 10 * number), "0", "wrap")
                for number, (table, id_) in enumerate(zip(tables, "abc", strict=True))
            ]
        )
        read = await one.read()
        assert (read.view.version, [*states(read)]) == (3, ["a", "b", "c"])
        assert len({await table.secret() for table in tables}) == 1


@awaited
async def test_other_terms_of_placement_are_refused(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a")
        for terms, said in (
            (("8", "wrap"), "batch size 0 of spread routing, and this node 8"),
            (("0", "steady"), "by the rule wrap, and this node by steady"),
            (('{"old":0,"new":8,"start":5,"end":6}', "wrap"), "batch size 0"),
            (('{"old":4,"new":8,"start":9e9,"end":9.1e9}', "wrap"), "batch size 0"),
        ):
            with pytest.raises(CannotStart, match=said):
                await table.join(member("b", 7010), *terms)
        assert states(await table.read()) == {"a": ACTIVE}
        change = '{"old": 0, "new": 8, "start": 9e9, "end": 9.1e9}'
        changing = await table.join(member("b", 7010), change, "wrap")
        assert (changing.view.version, changing.view.spread_batch) == (3, change)
        same = '{"new": 8, "old": 0, "start": "9e9", "end": 9100000000}'
        assert (await table.join(member("c", 7020), same, "wrap")).view.spread_batch == change
        with pytest.raises(CannotStart, match="batch size"):
            await table.join(member("d", 7030), "0", "wrap")


@pytest.mark.parametrize(
    ("present", "given", "now", "after"),
    [
        ("8", "8", 0.0, "8"),
        ('{"old":0,"new":8,"start":5,"end":9}', "8", 9.0, '{"old":0,"new":8,"start":5,"end":9}'),
        ("8", '{"old":0,"new":8,"start":5,"end":9}', 9.0, "8"),
        ("8", '{"old":0,"new":8,"start":5,"end":9}', 8.0, None),
        ('{"old":0,"new":8,"start":5,"end":9}', "8", 8.0, None),
        ('{"old":0,"new":8,"start":5,"end":9}', "0", 4.0, None),
        (
            '{"old":0,"new":8,"start":5,"end":9}',
            '{"old":8,"new":4,"start":12,"end":13}',
            10.0,
            '{"old":8,"new":4,"start":12,"end":13}',
        ),
        (
            '{"old":0,"new":8,"start":5,"end":9}',
            '{"old":8,"new":4,"start":12,"end":13}',
            8.0,
            None,
        ),
        ("8", '{"old":8,"new":4,"start":12,"end":13}', 12.0, None),
    ],
)
def test_which_terms_may_follow_which(
    present: str, given: str, now: float, after: str | None
) -> None:
    if after is None:
        with pytest.raises(CannotStart):
            joined_terms((present, "wrap"), (given, "wrap"), now)
    else:
        assert joined_terms((present, "wrap"), (given, "wrap"), now) == (after, "wrap")


@awaited
async def test_a_second_cluster_in_the_database_is_refused(location: str) -> None:
    async with opened(location, "shop") as table:
        await joined(table, "a")
        async with opened(location, "shpo") as typo:
            for attempt in (typo.secret(), typo.join(member("b", 7010), "0", "wrap")):
                with pytest.raises(CannotStart, match=r"another cluster.* alive: shop") as raised:
                    await attempt
                assert "`cluster.name`" in str(raised.value)
            assert (await typo.read()).view.version == 0
            # Not for ever: a cluster may be renamed.
            silence = f"beat_at - interval '{LIVE_SECONDS + 1} seconds'"
            await execute(location, f"UPDATE maitred.members SET beat_at = {silence}")  # noqa: S608
            assert states(await typo.join(member("b", 7010), "0", "wrap")) == {"b": JOINING}
        with pytest.raises(CannotStart, match="alive: shpo"):
            await table.join(member("c", 7020), "0", "wrap")


@awaited
async def test_the_dead_are_forgotten_after_a_day(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a", "b", "c")
        await table.change("b", ACTIVE, DEAD)
        await execute(location, "UPDATE maitred.members SET since = since - interval '25 hours'")
        assert [report.id for report in await table.describe()] == ["a", "b", "c"]
        await table.change("c", ACTIVE, DRAINING)
        assert [report.id for report in await table.describe()] == ["a", "c"]
        assert not (await table.beat("b", 0.0)).alive


@awaited
async def test_members_are_described_for_people(location: str) -> None:
    async with opened(location) as table:
        assert await table.describe() == []
        await table.join(member("a", host="::1"), "0", "wrap")
        (report,) = await table.describe()
        assert report.clock_ahead_seconds is None
        await table.beat("a", 1.5, -312.5)
        (report,) = await table.describe()
        assert report[:7] == ("a", "node of a", "[::1]:7000", JOINING, "1.2.3", (4, 5), 2)
        assert report.load == 1.5
        assert report.clock_ahead_seconds == -312.5
        assert 0 <= report.silent_seconds < 60
        assert report.since > 1.7e9


@awaited
async def test_who_listens_is_told_of_changes_and_of_nothing_else(location: str) -> None:
    async with opened(location) as one, opened(location) as two:
        told = asyncio.Queue[int]()
        await one.join(member("a"), "0", "wrap")
        await one.listen(lambda: told.put_nowait(1))
        await two.change("a", JOINING, ACTIVE)
        await asyncio.wait_for(told.get(), 30)
        await two.beat("a", 0.0)
        await two.read()
        await two.change("a", JOINING, ACTIVE)  # which it is not
        await one.read()  # its answer comes after all notifications
        assert told.empty()
        # A change that is rolled back tells nobody: the notification is part of the transaction.
        connection = await asyncpg.connect(location)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT maitred.raise_version('maitred', 1)")
        await transaction.rollback()
        await connection.close()
        await one.read()
        assert told.empty()
        assert (await one.read()).view.version == 2


@awaited
async def test_a_connection_that_is_lost_is_opened_again(location: str) -> None:
    async with opened(location) as one, opened(location) as two:
        told = asyncio.Queue[int]()
        await joined(one, "a", "b")
        await one.listen(lambda: told.put_nowait(1))
        kill = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'maitred member'"
        )
        assert await execute(location, kill) >= 1
        # By itself, and it says that a notification may have been lost.
        await asyncio.wait_for(told.get(), 30)
        while not told.empty():
            told.get_nowait()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await one.beat("a", 0.0)).alive
                    await two.change("b", ACTIVE, DRAINING)
                    break
                except StoreUnavailable:
                    continue
        await asyncio.wait_for(told.get(), 30)
        assert states(await one.read())["b"] is DRAINING
        used = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'maitred member'"
        )
        assert await execute(location, used) == 2  # one for each node


@awaited
async def test_a_new_timeline_raises_the_version_beyond_all_that_were_seen(location: str) -> None:
    async with opened(location) as table:
        await joined(table, "a")
        # What a failover to a standby without the last commits leaves.
        await execute(
            location, "UPDATE maitred.clusters SET timeline = '00000000', version = version - 1"
        )
    async with opened(location) as one, opened(location) as two:
        assert (await one.read()).view.version == 1001
        assert (await two.read()).view.version == 1001
    assert await execute(location, "SELECT maitred.timeline()") == "00000001"
    # A second failover: its standby knew neither the first one nor the version that it raised.
    await execute(location, TIMELINE.format(2))
    await execute(location, "UPDATE maitred.clusters SET timeline = '00000000', version = 1")
    async with opened(location) as table:
        assert (await table.read()).view.version == 2001


@awaited
async def test_a_closed_table_says_so(location: str) -> None:
    async with opened(location) as table:
        await table.listen(lambda: None)
        assert "connected" in repr(table)
    assert "closed" in repr(table)
    with pytest.raises(StoreUnavailable, match="closed"):
        await table.read()


@awaited
async def test_too_few_connections_for_three_nodes_are_warned_of(location: str) -> None:
    log = Heard()
    table = await open_members(location, "maitred", log)
    many = ClusterMember(**{**_fields(member("a")), "shards": 8, "shard_ports": tuple(range(8))})
    await table.join(many, "0", "wrap")
    (warning,) = log.warnings
    assert "A node with 8 shards uses up to 33 connections" in warning
    assert "the server has 97 for all clients" in warning
    await table.join(member("b", 7010), "0", "wrap")
    assert len(log.warnings) == 1
    await table.close()
