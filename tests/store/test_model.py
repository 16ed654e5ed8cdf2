"""Random histories of two stores against dictionaries: whatever was done, all engines agree."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.records import ROW_BYTES, Acquired, Changes, PartitionKey, Segment, StoredUse
from maitred.store.interface import SegmentRead
from tests.store.engines import Engine, Postgres, opened
from tests.store.samples import acquire, dead, everything, gone, later, result

if TYPE_CHECKING:
    from maitred.store.interface import Store

PARTITIONS = 3
_namespaces = itertools.count()

# Those of one priority never overlap; those of different ones do.
SEGMENTS = [
    Segment(priority, 10 * slot + priority, 10 * slot + 5 + priority, 6, bytes([slot, priority]))
    for slot in range(4)
    for priority in range(5)
]


@dataclass
class Model:
    """A partition, as plainly as it can be said."""

    range_id: int = 0
    backlog: int = 0
    clean: bool = True
    segments: set[Segment] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    later: dict[int, Any] = field(default_factory=dict)
    dead: dict[int, Any] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)

    def write(self, changes: Changes) -> None:
        self.backlog, self.clean = changes.backlog, changes.clean
        self.segments |= set(changes.segments)
        self.marks |= set(changes.marks)
        names = {(one.priority, one.first) for one in changes.segments_gone}
        self.segments = {s for s in self.segments if (s.priority, s.first) not in names}
        for one in changes.segments_gone:
            within = {mark for mark in self.marks if one.first <= mark <= one.last}
            self.marks -= {
                m for m in within if not any(s.first <= m <= s.last for s in self.segments)
            }
        for mine, going, coming in (
            (self.later, changes.later_gone, changes.later),
            (self.dead, changes.dead_gone, changes.dead),
            (self.results, [], changes.results),
        ):
            for sequence in going:
                mine.pop(sequence, None)
            mine.update({one.sequence: one for one in coming})

    def read(self, one: Segment) -> SegmentRead:
        return SegmentRead(one, frozenset(m for m in self.marks if one.first <= m <= one.last))

    def everything(self) -> dict[str, Any]:
        return {
            "segments": [self.read(one) for one in sorted(self.segments)],
            "later": sorted(self.later.values(), key=lambda one: (one.due, one.sequence)),
            "dead": [letter for _, letter in sorted(self.dead.items())],
            "dead_count": len(self.dead),
        }


sequences = st.integers(0, 12)
some = st.lists(sequences, max_size=4)
moments = st.sampled_from([0.0, 0.1, 2.5, 1_800_000_000.123_456_7])


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    pool = draw(st.lists(st.sampled_from(SEGMENTS), unique=True, max_size=5))
    split = draw(st.integers(0, len(pool)))
    return {
        "backlog": draw(st.integers(0, 2**40)),
        "clean": draw(st.booleans()),
        "segments": pool[:split],
        "segments_gone": [gone(one) for one in pool[split:]],
        "marks": draw(st.lists(st.integers(0, 45), max_size=6)),
        "later": [later(n, draw(moments)) for n in draw(some)],
        "later_gone": draw(some),
        "dead": [dead(n) for n in draw(some)],
        "dead_gone": draw(some),
        "results": [result(n, draw(moments)) for n in draw(some)],
    }


stores = st.integers(0, 1)
acquiring = st.tuples(st.just("acquire"), stores, st.integers(0, PARTITIONS - 1))
commit = st.tuples(
    st.just("commit"),
    stores,
    st.dictionaries(st.integers(0, PARTITIONS - 1), changes(), min_size=1),
)
forget = st.tuples(st.just("forget"), moments, st.integers(0, 3))
histories = st.lists(st.one_of(acquiring, commit, commit, commit, forget), max_size=12)


async def play(two: list[Store], history: list[Any]) -> None:
    namespace = f"n{next(_namespaces)}"
    keys = [PartitionKey(namespace, "queue", 1, n) for n in range(PARTITIONS)]
    models = [Model() for _ in keys]
    held: list[dict[int, int]] = [{}, {}]
    await two[0].forget_results(float("inf"), 10**9)  # of the example before
    # Most commits should find an owner.
    for what, *how in [*(("acquire", n % 2, n) for n in range(PARTITIONS)), *history]:
        if what == "acquire":
            store, n = how
            acquired = await acquire(two[store], keys[n])
            model = models[n]
            row = model.results.get(CONTROLS_ROW)
            controls = None if row is None else row.body
            assert acquired == Acquired(
                model.range_id + 1, None, model.backlog, model.clean, controls=controls
            )
            held[store][n] = model.range_id = acquired.range_id
            model.clean = False
        elif what == "commit":
            store, wanted = how
            group = [Changes(keys[n], held[store].get(n, 0), **one) for n, one in wanted.items()]
            good = {n for n in wanted if held[store].get(n) == models[n].range_id}
            overtaken = await two[store].commit(group)
            assert set(overtaken) == {keys[n] for n in wanted if n not in good}
            for one in group:
                if one.key not in overtaken:
                    models[one.key.partition].write(one)
        else:
            await forget_some(two[0], models, *how)
    for key, model in zip(keys, models, strict=True):
        await check(two[1], key, model)
    await check_use(two, namespace, models)


async def forget_some(store: Store, models: list[Model], before: float, most: int) -> None:
    """Which of those that expire at the same moment go first is nobody's business."""
    expired = sum(one.expires_at < before for m in models for one in m.results.values())
    assert await store.forget_results(before, most) == min(expired, most)
    await store.forget_results(before, 10**9)
    for model in models:
        model.results = {n: one for n, one in model.results.items() if one.expires_at >= before}


async def check(store: Store, key: PartitionKey, model: Model) -> None:
    found = await everything(store, key)
    assert found == model.everything()
    for sequence in (0, 3, 7, 12, 24, 44):
        around = [model.read(s) for s in sorted(model.segments) if s.first <= sequence <= s.last]
        assert await store.segments_around(key, sequence) == around
        assert await store.later_one(key, sequence) == model.later.get(sequence)
        assert await store.dead_one(key, sequence) == model.dead.get(sequence)
        assert await store.result(key, sequence) == model.results.get(sequence)


async def check_use(stores: list[Store], namespace: str, models: list[Model]) -> None:
    """What the engine has kept up is what one counts."""
    tasks = sum(model.backlog + len(model.dead) for model in models)
    rows = [
        row
        for model in models
        for rows in (
            model.segments,
            *(m.values() for m in (model.later, model.dead, model.results)),
        )
        for row in rows
    ]
    size = sum(len(row.body) + ROW_BYTES for row in rows)
    wanted = {(namespace, "queue"): StoredUse(tasks, size)} if tasks + size else {}
    for store in stores:
        use = await store.use()
        assert {name: one for name, one in use.queues.items() if name[0] == namespace} == wanted
        letters = sum(len(model.dead) for model in models)
        assert use.dead.get((namespace, "queue"), 0) == letters
        assert all(use.dead.values()), "queues without dead letters are absent"


def test_engines_do_as_the_model_does(engine: Engine) -> None:
    with asyncio.Runner() as runner:
        # To open a store takes longer than an example, and each example has a namespace of its own.
        opening = opened(engine, 0, 1)
        two = runner.run(opening.__aenter__())

        @settings(max_examples=10 if isinstance(engine, Postgres) else 20)
        @given(history=histories)
        def run(history: list[Any]) -> None:
            runner.run(play(two, history))

        try:
            run()
        finally:
            runner.run(opening.__aexit__(None, None, None))
