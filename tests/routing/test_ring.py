from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import farmhash
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import DuplicateHost, InvalidArgument, InvalidName, NoHosts, UnknownHost
from maitred.routing import HashRing, QueueId, place_all
from tests.routing.strategies import addresses, host_lists, keys


def plain_lookup_n(hosts: list[str], points: int, key: str, count: int) -> list[str]:
    """The definition, word for word: sort all points, start at the key, skip hosts seen."""
    ring = sorted((farmhash.fingerprint32(f"{h}{i}"), h, i) for h in hosts for i in range(points))
    here = farmhash.fingerprint32(key)
    onward = [p for p in ring if p[0] >= here] + [p for p in ring if p[0] < here]
    return list(dict.fromkeys(host for _, host, _ in onward))[:count]


@given(host_lists, st.integers(1, 30), keys, st.integers(0, 10))
def test_lookups_follow_the_definition(hosts: list[str], points: int, key: str, count: int) -> None:
    ring = HashRing(hosts, replica_points=points)
    assert ring.lookup_n(key, count) == plain_lookup_n(hosts, points, key, count)
    assert [ring.lookup(key)] == plain_lookup_n(hosts, points, key, 1)


def test_thousands_of_keys_at_the_default_points() -> None:
    # 2100 and 21001 are the ports whose points collide: `...:2100` + `11` and `...:21001` + `1`.
    hosts = [f"10.1.0.{i}:{port}" for i in range(6) for port in (2100, 21001, 210011)]
    ring = HashRing(hosts)
    points = sorted((farmhash.fingerprint32(f"{h}{i}"), h, i) for h in hosts for i in range(100))
    assert len({place for place, _, _ in points}) < len(points), "these hosts should collide"
    for number in range(3_000):
        key = f"namespace:queue-{number}:1"
        here = farmhash.fingerprint32(key)
        after = next((h for place, h, _ in points if place >= here), points[0][1])
        assert ring.lookup(key) == after
    for number in range(100):
        key = f"namespace:queue-{number}:1"
        assert ring.lookup_n(key, 18) == plain_lookup_n(hosts, 100, key, 18)


VECTORS = json.loads((Path(__file__).parent / "vectors" / "ringpop.json").read_text())


@pytest.mark.parametrize(
    "ring", VECTORS["rings"], ids=lambda ring: f"{len(ring['hosts'])}x{ring['replica_points']}"
)
def test_the_original_implementation_agrees(ring: dict[str, Any]) -> None:
    """Answers of ringpop itself, recorded."""
    hosts = ring["hosts"]
    ours = HashRing(hosts, replica_points=ring["replica_points"])
    if ring["replica_points"] == 100:
        assert ours.checksum() == ring["checksum"]
    for number, (one, five) in enumerate(zip(ring["lookup"], ring["lookup_5"], strict=True)):
        key = f"namespace-{number % 5}:queue-{number}:{number % 3}"
        assert ours.lookup(key) == hosts[one]
        assert ours.lookup_n(key, 5) == [hosts[int(at)] for at in five.split()]


@given(st.data())
def test_a_key_exactly_on_a_shared_point_goes_to_the_lesser_address(data: st.DataObject) -> None:
    # The key is spelled like the point itself, so it stands exactly there.
    index = data.draw(st.integers(0, 9))
    hosts = ["h:1", "h:11"]
    assert HashRing(hosts).lookup(f"h:11{index}") == "h:1"
    assert HashRing(hosts[::-1]).lookup_n(f"h:11{index}", 2) == ["h:1", "h:11"]


@given(host_lists, st.lists(st.tuples(st.booleans(), addresses), max_size=12), keys)
def test_joining_and_leaving_equals_building_anew(
    hosts: list[str], changes: list[tuple[bool, str]], key: str
) -> None:
    ring = HashRing(hosts, replica_points=20)
    members = set(hosts)
    for joins, host in changes:
        if joins and host not in members:
            ring.add(host)
            members.add(host)
        elif not joins and host in members:
            ring.remove(host)
            members.discard(host)
    anew = HashRing(members, replica_points=20)
    assert ring.checksum() == anew.checksum()
    assert ring.hosts == anew.hosts == tuple(sorted(members))
    if members:
        assert list(ring.walk(key)) == list(anew.walk(key))
        assert ring.lookup(key) == anew.lookup(key) == next(ring.walk(key))[1]
        assert ring.lookup_n(key, 20) == anew.lookup_n(key, 20)


@given(st.permutations(["a:1", "b:2", "c:3", "d:4"]))
def test_the_order_of_joining_changes_nothing(order: list[str]) -> None:
    ring = HashRing()
    for host in order:
        ring.add(host)
    assert ring.checksum() == HashRing(["a:1", "b:2", "c:3", "d:4"]).checksum()
    # ringpop: the fingerprint of the sorted addresses, joined with semicolons
    assert ring.checksum() == farmhash.fingerprint32("a:1;b:2;c:3;d:4")


def test_different_rings_have_different_checksums() -> None:
    rings = [HashRing(), HashRing(["a:1"]), HashRing(["a:1", "b:2"]), HashRing(["b:2"])]
    rings += [HashRing(["a:1"], replica_points=101), HashRing(["a:1", "points=101"])]
    assert len({ring.checksum() for ring in rings}) == len(rings)


@given(host_lists, keys)
def test_only_keys_of_a_lost_host_move(hosts: list[str], key: str) -> None:
    ring = HashRing(hosts)
    before = ring.lookup(key)
    lost = hosts[0]
    ring.remove(lost)
    if before != lost:
        assert ring.lookup(key) == before


def test_several_hosts_join_and_leave_at_once_or_not_at_all() -> None:
    ring = HashRing(["a:1"])
    with pytest.raises(DuplicateHost, match="in the ring already"):
        ring.add("b:2", "a:1")
    assert ring.hosts == ("a:1",)
    ring.add("b:2", "c:3")
    with pytest.raises(UnknownHost, match="not in the ring"):
        ring.remove("b:2", "x:9")
    assert len(ring) == 3
    ring.remove("b:2", "a:1")
    assert ring.hosts == ("c:3",)
    assert "c:3" in ring
    assert "a:1" not in ring
    assert repr(ring).startswith("<HashRing of 1 hosts x 100 points")


def test_a_reader_keeps_the_ring_it_started_with() -> None:
    ring = HashRing(["a:1", "b:2"])
    walk = ring.walk("key")
    first = next(walk)
    ring.add("c:3")
    ring.remove("a:1")
    rest = [first, *walk]
    assert len(rest) == 200
    assert {host for _, host in rest} == {"a:1", "b:2"}


def test_another_thread_sees_the_old_ring_or_the_new_one() -> None:
    hosts = [f"h{number}:1" for number in range(6)]
    ring = HashRing(hosts)
    keys = [f"key-{number}" for number in range(200)]
    queue = QueueId("ns", "queue", 1)

    def answers(of: HashRing) -> list[list[Any]]:
        return [*(of.lookup_n(key, 6) for key in keys), place_all(of, queue, 16, 8, "steady")]

    old, new = answers(ring), answers(HashRing(hosts[2:]))
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            ring.remove("h0:1", "h1:1")
            ring.add("h0:1", "h1:1")

    changing = threading.Thread(target=change)
    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    changing.start()
    try:
        for _ in range(60):
            for seen, before, after in zip(answers(ring), old, new, strict=True):
                assert seen in (before, after)
    finally:
        over.set()
        changing.join()
        sys.setswitchinterval(previous)


def test_a_snapshot_does_not_change() -> None:
    ring = HashRing(["a:1", "b:2"])
    before = ring.snapshot()
    ring.add("c:3")
    assert before.hosts == ("a:1", "b:2")
    assert before.checksum() == HashRing(["a:1", "b:2"]).checksum() != ring.checksum()


def test_the_index_grows_and_shrinks_with_the_ring() -> None:
    hosts = [f"10.0.0.{i}:7233" for i in range(60)]
    ring = HashRing()
    for host in hosts:
        ring.add(host)
        assert (
            len(ring._circle.starts)
            <= len(ring._circle.places)
            <= 16 * len(ring._circle.starts) + 1
        )
    keys = [f"key-{number}" for number in range(300)]
    whole, few = HashRing(hosts), HashRing(hosts[:3])
    assert [ring.lookup(key) for key in keys] == [whole.lookup(key) for key in keys]
    for host in hosts[3:]:
        ring.remove(host)
    assert [ring.lookup(key) for key in keys] == [few.lookup(key) for key in keys]
    assert len(ring._circle.starts) <= 300


def test_hosts_that_come_and_go_leave_nothing_behind() -> None:
    ring = HashRing(["a:1"])
    for number in range(50):
        ring.add(f"b:{number}")
        ring.remove(f"b:{number}")
    assert len(ring._circle.owners) == 101
    assert len(ring._circle.places) == 101


def test_bad_input() -> None:
    with pytest.raises(NoHosts, match="has no hosts"):
        HashRing().lookup("key")
    with pytest.raises(NoHosts):
        HashRing().lookup_n("key", 1)
    emptied = HashRing(["a:1"])
    emptied.remove("a:1")
    with pytest.raises(NoHosts):
        emptied.lookup("key")
    with pytest.raises(DuplicateHost, match="named twice"):
        HashRing(["a:1", "a:1"])
    with pytest.raises(DuplicateHost, match="named twice"):
        HashRing().add("a:1", "a:1")
    with pytest.raises(InvalidName, match="host is empty"):
        HashRing([""])
    with pytest.raises(InvalidName, match="has a ';'"):
        HashRing(["a:1;b:2"])
    with pytest.raises(InvalidArgument, match="Put it in a list"):
        HashRing("a:1,b:2")
    for points in (0, -1, 10_001, 1.5, True):
        with pytest.raises(InvalidArgument, match="points on the ring"):
            HashRing(["a:1"], replica_points=points)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Cannot look up -1"):
        HashRing(["a:1"]).lookup_n("key", -1)
    for call in (HashRing(["a:1"]).lookup, lambda key: HashRing(["a:1"]).lookup_n(key, 1)):
        with pytest.raises(InvalidName, match="not valid Unicode"):
            call("\ud800")
    assert HashRing(["a:1"]).lookup_n("key", 0) == []
    assert HashRing(["a:1"]).lookup(b"\xff\x00") == "a:1"
