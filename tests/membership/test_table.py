"""What every membership table promises; each engine runs the same tests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.errors import CannotStart, InternalError, StoreUnavailable
from maitred.membership.table import MEMBER_SECONDS
from maitred.membership.view import MemberState
from maitred.simulation.member_table import SimulatedMembers, SimulatedMemberTable
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.world import World
from tests.membership.observing import member
from tests.membership.tables import PostgresTables, SimulatedTables
from tests.store.engines import awaited
from tests.store.postgres_server import empty_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.membership.table import MembershipTable, TableState
    from tests.membership.tables import TableEngine

JOINING, ACTIVE, DRAINING, DEAD = MemberState
TERMS = ("0", "wrap")
A, B, C = (member(number, JOINING) for number in (1, 2, 3))
PATIENCE_SECONDS = 30.0


@pytest.fixture(params=["postgres", "simulated"])
def tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TableEngine:
    if request.param == "simulated":
        return SimulatedTables()
    monkeypatch.setattr("maitred.store.postgres_members.ADDRESS_WATCH_SECONDS", 0.03)
    return PostgresTables(empty_database(request.getfixturevalue("postgres_server")))


@asynccontextmanager
async def opened(engine: TableEngine, count: int = 1) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        handles = []
        for _ in range(count):
            handle = await engine.open()
            stack.push_async_callback(handle.close)
            handles.append(handle)
        yield handles if count > 1 else handles[0]


def states(found: TableState) -> dict[str, str]:
    return {one.id: one.state.value for one in found.view.members}


async def with_active(table: MembershipTable, *members: Any) -> TableState:  # noqa: ANN401
    found = await table.read()
    for one in members:
        await table.join(one, *TERMS)
        found = await table.change(one.id, JOINING, ACTIVE)
    return found


@awaited
async def test_the_first_node_makes_the_secret_and_all_have_it(tables: TableEngine) -> None:
    async with opened(tables, 2) as (one, other):
        secret = await one.secret()
        assert len(secret) == 32
        assert await other.secret() == secret


@awaited
async def test_an_empty_table(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await table.read()
        assert (found.view.members, dict(found.beats), found.votes) == ((), {}, ())
        assert found.view.cluster == "maitred"


@awaited
async def test_a_member_joins_and_every_change_raises_the_version(tables: TableEngine) -> None:
    async with opened(tables, 2) as (one, other):
        first = (await one.read()).view.version
        joined = await one.join(A, *TERMS)
        assert joined.view.version == first + 1
        assert states(joined) == {A.id: "joining"}
        assert joined.beats == {A.id: 0}
        assert (joined.view.spread_batch, joined.view.placement) == TERMS
        active = await one.change(A.id, JOINING, ACTIVE)
        assert active.view.version == first + 2
        found = await other.read()
        assert found.view == active.view
        (read,) = found.view.members
        assert replace(read, since=0.0, state=JOINING) == A, "all fields are kept"


@awaited
async def test_members_are_ordered_by_id(tables: TableEngine) -> None:
    async with opened(tables) as table:
        for one in (C, A, B):
            await table.join(one, *TERMS)
        found = await table.read()
        assert [one.id for one in found.view.members] == [A.id, B.id, C.id]


@awaited
async def test_a_join_can_be_repeated(tables: TableEngine) -> None:
    async with opened(tables) as table:
        first = await with_active(table, A)
        again = await table.join(A, *TERMS)
        assert again.view == first.view
        await table.change(A.id, ACTIVE, DEAD)
        gone = await table.join(A, *TERMS)
        assert gone.view.members == (), "the dead never return"


@awaited
async def test_a_later_start_at_an_address_ends_the_earlier_one(tables: TableEngine) -> None:
    async with opened(tables) as table:
        await with_active(table, A, B)
        later = replace(C, host=A.host, port=A.port)
        before = (await table.read()).view.version
        found = await table.join(later, *TERMS)
        assert states(found) == {B.id: "active", later.id: "joining"}
        assert found.view.version > before
        assert (await table.beat(A.id, 0.0)).alive is False


@awaited
async def test_the_first_member_sets_the_terms(tables: TableEngine) -> None:
    async with opened(tables) as table:
        await table.join(A, "7", "steady")
        with pytest.raises(CannotStart):
            await table.join(B, "0", "steady")
        with pytest.raises(CannotStart):
            await table.join(B, "7", "wrap")
        found = await table.join(B, "7", "steady")
        assert (found.view.spread_batch, found.view.placement) == ("7", "steady")
        for one in (A, B):
            await table.change(one.id, JOINING, DEAD)
        found = await table.join(C, "0", "wrap")
        assert (found.view.spread_batch, found.view.placement) == ("0", "wrap")


@awaited
async def test_heartbeats_count_and_raise_no_version(tables: TableEngine) -> None:
    async with opened(tables, 2) as (one, other):
        found = await with_active(one, A, B)
        assert (await one.beat(A.id, 0.5)).beats == {A.id: 1, B.id: 0}
        answer = await other.beat(B.id, 0.0)
        assert answer.beats == {A.id: 1, B.id: 1}
        assert answer.alive
        assert answer.version == found.view.version
        assert (await one.read()).beats == {A.id: 1, B.id: 1}


@awaited
async def test_heartbeats_tell_the_database_s_time(tables: TableEngine) -> None:
    async with opened(tables) as table:
        await with_active(table, A)
        first, second = [(await table.beat(A.id, 0.0)).now for _ in range(2)]
        assert first is not None
        assert second is not None
        assert 1.7e9 < first <= second


@awaited
async def test_a_member_that_is_dead_or_unknown_is_told_so(tables: TableEngine) -> None:
    async with opened(tables) as table:
        await with_active(table, A, B)
        await table.change(A.id, ACTIVE, DEAD)
        answer = await table.beat(A.id, 0.0)
        assert not answer.alive
        assert answer.beats == {B.id: 0}
        assert not (await table.beat(C.id, 0.0)).alive


@awaited
async def test_a_state_changes_only_from_the_state_that_is_named(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await with_active(table, A)
        for before, after in ((JOINING, ACTIVE), (DRAINING, ACTIVE), (JOINING, DEAD)):
            again = await table.change(A.id, before, after)
            assert again.view == found.view
        assert states(await table.change(A.id, ACTIVE, DRAINING)) == {A.id: "draining"}
        assert states(await table.change(A.id, DRAINING, ACTIVE)) == {A.id: "active"}
        assert states(await table.change(A.id, ACTIVE, DEAD)) == {}
        for before, after in ((DEAD, ACTIVE), (ACTIVE, JOINING), (JOINING, DRAINING)):
            with pytest.raises(InternalError):
                await table.change(A.id, before, after)
        assert states(await table.change("0" * 16, ACTIVE, DRAINING)) == {}


@awaited
async def test_enough_votes_are_a_death(tables: TableEngine) -> None:
    async with opened(tables, 2) as (one, other):
        found = await with_active(one, A, B, C)
        version = found.view.version
        vote = {"beat": 0, "version": version, "needed": 2}
        first = await one.accuse(A.id, C.id, **vote)
        assert first.view == found.view
        assert [(v.accuser, v.accused) for v in first.votes] == [(A.id, C.id)]
        assert 0.0 <= first.votes[0].age_seconds < PATIENCE_SECONDS
        again = await one.accuse(A.id, C.id, **vote)
        assert again.view == found.view, "a vote counts once"
        second = await other.accuse(B.id, C.id, **vote)
        assert states(second) == {A.id: "active", B.id: "active"}
        assert second.view.version == version + 1
        assert (await one.beat(C.id, 0.0)).alive is False


@awaited
async def test_one_vote_is_a_death_if_one_is_needed(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await with_active(table, A, B)
        version = found.view.version
        found = await table.accuse(A.id, B.id, beat=0, version=version, needed=1)
        assert states(found) == {A.id: "active"}


@awaited
async def test_a_vote_at_another_version_does_not_count(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await with_active(table, A, B)
        for version in (found.view.version - 1, found.view.version + 1):
            after = await table.accuse(A.id, B.id, beat=0, version=version, needed=1)
            assert after.view == found.view
            assert after.votes == ()


@awaited
async def test_a_heartbeat_voids_the_votes(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await with_active(table, A, B, C)
        version = found.view.version
        await table.accuse(A.id, C.id, beat=0, version=version, needed=2)
        await table.beat(C.id, 0.0)
        late = await table.accuse(B.id, C.id, beat=0, version=version, needed=2)
        assert late.view == found.view, "the accuser had not seen the heartbeat"
        assert late.beats[C.id] == 1
        second = await table.accuse(B.id, C.id, beat=1, version=version, needed=2)
        assert second.view == found.view, "the other vote was made before the heartbeat"
        both = await table.accuse(A.id, C.id, beat=1, version=version, needed=2)
        assert states(both) == {A.id: "active", B.id: "active"}


@pytest.mark.parametrize("state", [JOINING, DRAINING, DEAD])
@awaited
async def test_only_active_members_vote(tables: TableEngine, state: MemberState) -> None:
    async with opened(tables) as table:
        await with_active(table, A, B)
        if state is JOINING:
            await table.join(C, *TERMS)
            accuser = C.id
        else:
            await table.change(A.id, ACTIVE, state)
            accuser = A.id
        found = await table.read()
        version = found.view.version
        after = await table.accuse(accuser, B.id, beat=0, version=version, needed=1)
        assert after.view == found.view
        assert (await table.accuse(B.id, "0" * 16, beat=0, version=version, needed=1)).view == (
            found.view
        )


@awaited
async def test_the_vote_of_a_member_that_left_does_not_count(tables: TableEngine) -> None:
    async with opened(tables) as table:
        found = await with_active(table, A, B, C)
        await table.accuse(A.id, C.id, beat=0, version=found.view.version, needed=2)
        found = await table.change(A.id, ACTIVE, DEAD)
        after = await table.accuse(B.id, C.id, beat=0, version=found.view.version, needed=2)
        assert after.view == found.view


@pytest.mark.parametrize("state", [JOINING, DRAINING])
@awaited
async def test_members_in_every_state_can_be_accused(
    tables: TableEngine, state: MemberState
) -> None:
    async with opened(tables) as table:
        await with_active(table, A)
        found = await table.join(B, *TERMS)
        if state is DRAINING:
            await table.change(B.id, JOINING, ACTIVE)
            found = await table.change(B.id, ACTIVE, DRAINING)
        after = await table.accuse(A.id, B.id, beat=0, version=found.view.version, needed=1)
        assert states(after) == {A.id: "active"}


@awaited
async def test_changes_are_told_and_heartbeats_are_not(tables: TableEngine) -> None:
    async with opened(tables, 2) as (one, other):
        told = asyncio.Event()
        await other.listen(told.set)
        await one.join(A, *TERMS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
        assert states(await other.read()) == {A.id: "joining"}


@awaited
async def test_of_many_changes_at_once_each_has_its_own_version(tables: TableEngine) -> None:
    async with opened(tables, 4) as handles:
        members = [member(number, JOINING) for number in range(10, 14)]
        found = await asyncio.gather(
            *[handle.join(one, *TERMS) for handle, one in zip(handles, members, strict=True)]
        )
        assert len({state.view.version for state in found}) == 4
        assert len((await handles[0].read()).view.members) == 4


def test_a_simulated_database_that_does_not_answer_in_time_fails_the_call() -> None:
    """As PostgreSQL's table does: a node that starts asks for the secret without a limit of its
    own."""
    with World(1) as world:
        disk = SimulatedDisk(world.random("disk"))
        table = SimulatedMemberTable(SimulatedMembers("maitred", world.random("members")), disk)

        async def scenario() -> None:
            disk.slow_for(0.1, 1_000_000.0)
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await table.read()
            assert world.loop.now == pytest.approx(MEMBER_SECONDS)
            assert (await table.read()).view.members == ()
            await table.close()

        world.run(scenario())
