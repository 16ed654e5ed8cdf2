"""Pages of all queues over many shards are those of the list of the sums, whatever each has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from maitred.client import queue_states
from maitred.client.queue_states import NAMES_SECONDS, ListedQueue, QueuePages
from maitred.client.statistics import ShardAnswer, Unreachable
from maitred.errors import DeadlineExceeded, InvalidArgument, PermissionDenied
from maitred.matching.controls import Pause
from maitred.protocol.queue_overview import (
    STATES_MAX,
    ListQueueStates,
    QueueSort,
    QueueStateRow,
    QueueStatesListed,
)
from maitred.protocol.tasks import Queues, QueuesFound
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.queue_states import QueueStatesPage
    from maitred.errors import MaitredError
    from maitred.protocol.messages import AnyAnswer, AnyRequest

Name = tuple[str, str]
Shard = tuple[str, int]

SORTS: tuple[QueueSort, ...] = ("name", "backlog", "oldest", "added", "dead")
FIELDS: dict[QueueSort, str] = {
    "backlog": "backlog",
    "oldest": "oldest_seconds",
    "added": "added_per_second",
    "dead": "dead",
}


def row(name: Name, **fields: Any) -> QueueStateRow:  # noqa: ANN401
    numbers = [
        name for name in QueueStateRow.__struct_fields__[2:] if name not in ("pause", "recent_runs")
    ]
    nothing = dict.fromkeys(numbers, 0)
    return QueueStateRow(*name, **{**nothing, "loaded": 1, "partitions": 4, **fields})


class Nodes:
    """Shards with these rows, and a store with these queues. Each shard sorts and cuts as the
    request says, in the plainest way."""

    def __init__(self, shards: dict[Shard, dict[Name, QueueStateRow]], stored: set[Name]) -> None:
        self.shards = shards
        self.stored = stored
        self.silent: dict[str, MaitredError] = {}
        self.asked: list[ListQueueStates] = []
        self.names_asked = 0

    def watched_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(address for address, _ in self.shards))[:1]

    async def request(
        self,
        message: AnyRequest,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - as the client has it
        *,
        node: str | None = None,
    ) -> AnyAnswer:
        assert isinstance(message, Queues)
        self.names_asked += 1
        if node in self.silent:
            raise self.silent[node]
        return QueuesFound([(*name, 1) for name in self.stored])

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
    ) -> list[ShardAnswer | Unreachable]:
        found: list[ShardAnswer | Unreachable] = []
        for (address, number), rows in self.shards.items():
            asked = message(address, number)
            if asked is None:
                continue
            assert isinstance(asked, ListQueueStates)
            assert asked.shard == number
            problem = self.silent.get(address)
            if problem is not None:
                found.append(Unreachable(address=address, shard=number, error=problem))
                continue
            self.asked.append(asked)
            found.append(ShardAnswer(address=address, shard=number, answer=_answer(rows, asked)))
        return found


def _answer(rows: dict[Name, QueueStateRow], asked: ListQueueStates) -> QueueStatesListed:
    if asked.names:
        named = [rows[name] for name in asked.names if name in rows and _may(asked, name)]
        return QueueStatesListed(named, None, len(named))
    field = FIELDS.get(asked.sort)
    places = sorted(
        (-getattr(one, field) if field else 0.0, *name)
        for name, one in rows.items()
        if _may(asked, name)
        and asked.namespace in ("", name[0])
        and asked.match.lower() in name[1].lower()
        and (field is None or getattr(one, field))
    )
    total = len(places)
    if asked.after is not None:
        value, *name = asked.after
        places = [place for place in places if place > (-value, *name)]
    page = places[: asked.most]
    cursor = (-page[-1][0], *page[-1][1:]) if len(places) > asked.most else None
    told = [rows[namespace, queue] for _, namespace, queue in page]
    return QueueStatesListed(told, cast("Any", cursor), total)


def _may(asked: ListQueueStates, name: Name) -> bool:
    return asked.within is None or name[0] in asked.within


async def all_pages(pages: QueuePages, **what: Any) -> list[QueueStatesPage]:  # noqa: ANN401
    found = [await pages.page(**what)]
    while found[-1].cursor is not None:
        assert len(found[-1].queues) == what["most"]
        found.append(await pages.page(cursor=found[-1].cursor, **what))
    return found


def names_of(pages: list[QueueStatesPage]) -> list[Name]:
    return [(one.namespace, one.queue) for page in pages for one in page.queues]


NAMES = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([*"uvwxyz", "Xu", "vx"]))
ROWS = st.builds(
    lambda name, numbers: row(name, **numbers),
    NAMES,
    st.fixed_dictionaries(
        {
            "backlog": st.integers(0, 4),
            "oldest_seconds": st.sampled_from([0.0, 0.5, 2.0]),
            "added_per_second": st.sampled_from([0.0, 0.125, 3.5]),
            "dead": st.integers(0, 2),
            "running": st.integers(0, 2),
        }
    ),
)
SHARDS = st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=4)


@pytest.mark.parametrize("sort", SORTS)
@settings(max_examples=60)
@given(
    shards=SHARDS,
    stored=st.sets(NAMES, max_size=8),
    most=st.integers(1, 5),
    page=st.integers(1, 3),
    namespace=st.sampled_from(["", "", "a"]),
    match=st.sampled_from(["", "", "x"]),
    within=st.sampled_from([None, None, ["b"]]),
)
def test_pages_put_together_are_the_sorted_sums(
    sort: QueueSort,
    shards: list[list[QueueStateRow]],
    stored: set[Name],
    most: int,
    page: int,
    namespace: str,
    match: str,
    within: list[str] | None,
) -> None:
    by_shard = {
        (f"node-{number // 2}", number % 2): {(one.namespace, one.queue): one for one in rows}
        for number, rows in enumerate(shards)
    }
    loaded = {name for rows in by_shard.values() for name in rows}
    nodes = Nodes(by_shard, loaded | stored)
    sums: dict[Name, ListedQueue] = {
        name: ListedQueue(*name)
        for name in loaded | stored
        if namespace in ("", name[0])
        and match in name[1].lower()
        and (within is None or name[0] in within)
    }
    for rows in by_shard.values():
        for name, one in rows.items():
            if name in sums:
                sums[name] = sums[name].plus(one)
    field = FIELDS.get(sort, "")
    expected = sorted(sums.values(), key=lambda one: (-getattr(one, field, 0), one[:2]))

    async def main() -> None:
        what = {"namespace": namespace, "match": match, "within": within, "sort": sort}
        found = await all_pages(QueuePages(nodes), most=most, **what)
        assert [one for some in found for one in some.queues] == expected
        assert {some.total for some in found} <= {len(expected)}
        assert not any(some.unreachable for some in found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_states, "PAGE", page)
        asyncio.run(main())


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with World(1) as world:
        world.run(main())


def test_the_highest_sum_is_found_though_it_is_the_highest_nowhere() -> None:
    async def main() -> None:
        shards = {}
        for number in range(3):
            rows = {("n", f"s{number}-{at}"): 100 - at for at in range(50)}
            rows["n", "spread"] = 60
            shards["node", number] = {
                name: row(name, backlog=backlog) for name, backlog in rows.items()
            }
        nodes = Nodes(shards, {name for rows in shards.values() for name in rows})
        page = await QueuePages(nodes).page(sort="backlog", most=2)
        assert [(one.queue, one.backlog) for one in page.queues] == [("spread", 180), ("s0-0", 100)]

    run(main)


def test_a_page_of_ten_thousand_queues_asks_for_no_more_than_it_needs() -> None:
    async def main() -> None:
        names = [("n", f"q{number:05}") for number in range(10_000)]
        shards = {
            ("node", shard): {
                name: row(name, backlog=number % 1_000 if number % 10 == 0 else 0)
                for number, name in enumerate(names)
                if number % 2 == shard
            }
            for shard in range(2)
        }
        nodes = Nodes(shards, {*names})
        pages = QueuePages(nodes)
        for sort in ("name", "backlog"):
            nodes.asked.clear()
            page = await pages.page(sort=sort, most=50)
            assert page.total == 10_000
            assert len(nodes.asked) <= 6
            cursor = page.cursor
            nodes.asked.clear()
            following = await pages.page(sort=sort, most=50, cursor=cursor)
            assert following.queues[0] > page.queues[-1] or sort == "backlog"
            assert not {one[:2] for one in page.queues} & {one[:2] for one in following.queues}
            assert len(nodes.asked) <= 8
        assert nodes.names_asked == 1

    run(main)


def test_what_shards_have_of_a_queue_is_added_up() -> None:
    pause = Pause(by="anna", at=5.0, reason="repair")
    fields = structs.asdict(row(("n", "q")))
    numbers = {name for name, value in fields.items() if value == 0} | {"loaded"}
    nodes = Nodes(
        {
            ("a", 0): {("n", "q"): row(("n", "q"), **dict.fromkeys(numbers, 2), partitions=4)},
            ("a", 1): {
                ("n", "q"): row(("n", "q"), **dict.fromkeys(numbers, 5), partitions=3, pause=pause)
            },
        },
        {("n", "q"), ("n", "r")},
    )

    async def main() -> None:
        page = await QueuePages(nodes).page()
        one, other = page.queues
        told = one._asdict()
        assert {told[name] for name in numbers - {"oldest_seconds"}} == {7}
        assert (one.oldest_seconds, one.partitions, one.pause) == (5, 4, pause)
        assert other == ListedQueue("n", "r")

    run(main)


def test_those_that_do_not_answer_are_named_and_are_not_asked_again() -> None:
    async def main() -> None:
        rows = {("n", f"q{number}"): row(("n", f"q{number}"), backlog=1) for number in range(9)}
        nodes = Nodes({("a", 0): rows, ("b", 0): rows, ("b", 1): rows}, {*rows})
        nodes.silent["b"] = DeadlineExceeded("It did not answer in time.")
        pages = QueuePages(nodes)
        found = await pages.page(sort="backlog", most=5)
        assert [one.backlog for one in found.queues] == [1] * 5
        assert [(one.address, one.shard) for one in found.unreachable] == [("b", 0), ("b", 1)]
        # The node that tells the names: those that are loaded are listed all the same.
        nodes.silent = {"a": DeadlineExceeded("It did not answer in time.")}
        found = await QueuePages(nodes).page()
        assert names_of([found]) == sorted(rows)
        assert [(one.address, one.shard) for one in found.unreachable] == [("a", 0), ("a", None)]
        nodes.silent |= dict.fromkeys("b", PermissionDenied("Not you."))
        with pytest.raises(DeadlineExceeded):
            await pages.page()

    run(main)


def test_names_are_remembered_for_a_while() -> None:
    async def main() -> None:
        nodes = Nodes({("a", 0): {}}, {("n", "old")})
        pages = QueuePages(nodes)
        assert names_of([await pages.page()]) == [("n", "old")]
        nodes.stored = {("n", "unused")}
        nodes.shards["a", 0]["n", "new"] = row(("n", "new"))
        assert names_of([await pages.page()]) == [("n", "new"), ("n", "old")]
        await asyncio.sleep(NAMES_SECONDS)
        assert names_of([await pages.page()]) == [("n", "new"), ("n", "unused")]
        nodes.silent["a"] = DeadlineExceeded("It did not answer in time.")
        await asyncio.sleep(NAMES_SECONDS)
        with pytest.raises(DeadlineExceeded):
            await pages.page()
        assert nodes.names_asked == 3

    run(main)


def test_a_cursor_is_checked_and_so_is_the_size_of_a_page() -> None:
    async def main() -> None:
        rows = {("n", f"q{number}"): row(("n", f"q{number}"), backlog=1) for number in range(9)}
        pages = QueuePages(Nodes({("a", 0): rows}, {*rows}))
        cursor = (await pages.page(most=5)).cursor
        assert cursor is not None
        for bad in ("", "x", "ä", "AAAA", cursor[:-3], cursor + "A", "A" * 9_999):
            with pytest.raises(InvalidArgument, match="cursor"):
                await pages.page(cursor=bad)
        with pytest.raises(InvalidArgument, match="cursor"):
            await pages.page(cursor=cursor, sort="dead")
        for most in (0, STATES_MAX + 1):
            with pytest.raises(InvalidArgument, match="1 to 500"):
                await pages.page(most=most)

    run(main)


@pytest.mark.parametrize(("sort", "shards"), [("backlog", 1), ("oldest", 1), ("oldest", 3)])
def test_queues_that_are_alike_are_not_all_asked_for(sort: QueueSort, shards: int) -> None:
    names = [("shop", f"queue-{number:04}") for number in range(2_000)]
    fields = {"backlog": 1, "oldest_seconds": 5.0}
    nodes = Nodes(
        {
            ("one:1", number): {name: row(name, **fields) for name in names[number::shards]}
            for number in range(shards)
        },
        set(names),
    )
    page = World(seed=1).run(QueuePages(cast("Any", nodes)).page(sort=sort, most=100))
    assert names_of([page]) == names[:100]
    assert len(nodes.asked) <= 2 * shards
