"""The controls of a queue: the record, what a paused partition does, settings that are set live."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, msgpack

from maitred.errors import ControlsConflict, InvalidSetting, Overloaded, UnknownSetting
from maitred.matching.controls import (
    NO_CONTROLS,
    LiveSetting,
    Pause,
    QueueControls,
    decode_controls,
    effective,
    encode_controls,
)
from maitred.matching.slots import SlotRequest
from maitred.settings import Queue, Scaling
from maitred.settings.live import SETTABLE, check_setting, setting
from tests.matching.driver import DONE, FAILED, Driver

ANA = Pause(by="ana", at=1_700_000_000.0, reason="a bad deployment")


# The record


def test_a_record_survives_the_store() -> None:
    live = {"rate_per_second": LiveSetting(value=5.0, by="ana", at=1.5)}
    controls = NO_CONTROLS.paused(ANA, 3).set(live, [], 3)
    assert decode_controls(encode_controls(controls), 4) == controls
    assert decode_controls(None, 4) == NO_CONTROLS


@pytest.mark.parametrize("row", [b"", b"\xc1", b"\xa4nope", b"\x81\xa7version\xa1x"])
def test_a_row_that_cannot_be_read_pauses_the_queue(row: bytes) -> None:
    """The queue may have been paused, and an operator can resume it."""
    controls = decode_controls(row, 7)
    assert controls.pause is not None
    assert "cannot be read" in controls.pause.reason
    assert controls.resumed(7).version > controls.version >= 7


def test_a_field_of_a_later_release_is_skipped() -> None:
    assert decode_controls(b"\x82\xa7version\x05\xa3new\xc3", 1) == QueueControls(version=5)


class EarlierSetting(Struct):
    """A setting as the release that brought live settings reads it."""

    value: bool | int | float | None


class EarlierControls(Struct):
    """The controls as that release reads them; it pauses the queue if it cannot."""

    settings: dict[str, EarlierSetting]


def test_the_release_that_brought_the_controls_can_read_a_record_with_words() -> None:
    live = {
        "queries.policy": LiveSetting(value="adaptive"),
        "rate_per_second": LiveSetting(value=5.0),
    }
    controls = NO_CONTROLS.set(live, [], 3)
    assert controls.live == live
    read = msgpack.decode(encode_controls(controls), type=EarlierControls)
    assert read.settings == {"rate_per_second": EarlierSetting(5.0)}
    assert controls.set({}, list(live), 3).live == {}


CHANGES = st.lists(st.sampled_from(["pause", "resume", "set", "unset", "new owner"]), max_size=30)


@given(CHANGES)
def test_versions_only_rise_and_no_change_keeps_the_version(changes: list[str]) -> None:
    controls, range_id = NO_CONTROLS, 1
    for change in changes:
        before = controls
        if change == "pause":
            controls = controls.paused(ANA, range_id)
            assert controls.pause is not None
        elif change == "resume":
            controls = controls.resumed(range_id)
            assert controls.pause is None
        elif change == "set":
            controls = controls.set({"rate_per_second": LiveSetting(value=5.0)}, [], range_id)
        elif change == "unset":
            controls = controls.set({}, ["rate_per_second"], range_id)
        else:
            range_id += 1
        if controls is before:
            continue
        assert controls.version > max(before.version, range_id)


def test_a_change_of_another_version_is_refused() -> None:
    controls = NO_CONTROLS.paused(ANA, 1)
    controls.check(None)
    controls.check(controls.version)
    with pytest.raises(ControlsConflict, match=r"version 2, not 0"):
        controls.check(0)


# A paused partition


def test_a_paused_queue_takes_tasks_and_hands_out_none() -> None:
    driver = Driver()
    driver.pause()
    waiting = driver.offer(slots=5)
    added = driver.add(3)
    driver.pass_time(30.0)
    assert added.safe
    assert not waiting.answered
    assert driver.partition.waiting == 3
    driver.resume()
    assert len(waiting.value) == 3


def test_running_tasks_go_on_and_retries_wait() -> None:
    driver = Driver()
    driver.add(2)
    first, second = driver.take(slots=2)
    driver.pause()
    driver.finish(first, how=DONE)
    driver.finish(second, how=FAILED)
    driver.pass_time(600.0)
    assert driver.take() == []
    driver.resume()
    assert [run.sequence for run in driver.take(slots=5)] == [second.sequence]


def test_a_paused_queue_stays_paused_after_a_crash() -> None:
    driver = Driver(recovery_seconds=0.0)
    driver.add(3)
    driver.pause()
    driver.commit()
    driver.crash()
    assert driver.is_paused
    waiting = driver.offer(slots=5)
    driver.pass_time(30.0)
    assert not waiting.answered
    driver.resume()
    assert len(waiting.value) == 3


def test_queries_of_a_paused_queue_are_answered() -> None:
    driver = Driver()
    driver.pause()
    driver.add()
    driver.offer()
    assert len(driver.want().value) == 1


def test_tasks_at_the_parent_come_back_and_none_goes_up() -> None:
    driver = Driver(partition=1)
    driver.add(2)
    driver.pass_time(0.1)
    assert driver.passed_tasks
    driver.pause()
    assert driver.recalled_tasks
    while driver.passed_tasks:
        driver.answer_task(None)
    driver.pass_time(30.0)
    assert not driver.passed_tasks
    driver.resume()
    driver.pass_time(0.1)
    assert driver.passed_tasks


def test_a_task_that_the_parent_gave_out_in_the_same_moment_runs() -> None:
    driver = Driver(partition=1)
    driver.add()
    driver.pass_time(0.1)
    driver.pause()
    driver.answer_task(9)
    assert len(driver.partition.own_tasks.leases) == 1


def test_an_offer_at_a_paused_child_goes_up_for_the_queries_there() -> None:
    driver = Driver(partition=1)
    driver.pause()
    driver.add()
    driver.offer()
    driver.pass_time(1.0)
    assert driver.passed_offers


def test_visitors_go_home_when_the_parent_is_paused() -> None:
    driver = Driver()
    visitor = driver.visit(77)
    driver.pause()
    assert driver.visitors[visitor].answered
    assert driver.take() == []


def test_a_paused_partition_does_not_draw_shared_slots() -> None:
    driver = Driver()
    driver.add()
    assert driver.partition.matcher.urgency() is not None
    driver.pause()
    assert driver.partition.matcher.urgency() is None
    driver.resume()
    assert driver.partition.matcher.urgency() is not None


@given(seed=st.integers(0, 10**6), steps=st.integers(10, 60))
def test_resuming_hands_out_every_task_exactly_once(seed: int, steps: int) -> None:
    """The driver fails the test if a paused partition hands a task out."""
    random = Random(seed)
    driver = Driver(buffer_tasks=10, hold_seconds=random.choice((0.0, 0.02)))
    added = []
    done = []
    for _ in range(steps):
        act = random.choice(("add", "take", "pause", "resume", "time"))
        if act == "add":
            added += driver.add(random.randint(1, 20)).sequences
        elif act == "take":
            runs = driver.take(slots=random.randint(1, 8))
            assert not (runs and driver.is_paused)
            driver.finish(*runs)
            done += [run.sequence for run in runs]
        elif act == "pause":
            driver.pause()
        elif act == "resume":
            driver.resume()
        else:
            driver.pass_time(random.random())
    driver.resume()
    while runs := driver.take(slots=50):
        driver.finish(*runs)
        done += [run.sequence for run in runs]
    assert sorted(done) == sorted(added)
    assert len(set(done)) == len(done)


# Settings that are set live


def test_each_settable_name_is_a_setting_of_a_queue() -> None:
    for name in SETTABLE:
        setting(Queue(), name)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("rate_per_second", 5, 5.0),
        ("rate_per_second", None, None),
        ("scaling.adaptive", False, False),
        ("scaling.partitions_max", 8, 8),
        ("queries.policy", "adaptive", "adaptive"),
        ("queries.run_seconds", 5, 5.0),
    ],
)
def test_a_live_value_replaces_that_of_the_settings(name: str, value: object, read: object) -> None:
    settings = Queue(rate_per_second=1.0, scaling=Scaling(look_seconds=9.0))
    live = {name: LiveSetting(value=check_setting(name, value))}  # type: ignore[arg-type]
    after = effective(settings, NO_CONTROLS.set(live, [], 1))
    assert setting(after, name) == read
    assert after.scaling.look_seconds == 9.0
    unset = NO_CONTROLS.set(live, [], 1).set({}, [name], 1)
    assert effective(settings, unset) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate_per_second", 0),
        ("rate_per_second", -1),
        ("rate_per_second", True),
        ("scaling.adaptive", None),
        ("scaling.adaptive", 3),
        ("scaling.partitions_max", 0),
        ("scaling.partitions_max", 5_000),
        ("scaling.partitions_max", 1.5),
        ("queries.policy", "adaptif"),
        ("queries.policy", None),
        ("queries.waiting", "many"),
        ("rate_per_second", "5"),
    ],
)
def test_a_value_that_the_settings_file_could_not_have_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=name.replace(".", r"\.")):
        check_setting(name, value)  # type: ignore[arg-type]


def test_a_word_that_is_no_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidSetting) as refused:
        check_setting("queries.policy", "adaptif")
    assert refused.value.remedy is not None
    assert "idle, adaptive, two-phase" in refused.value.remedy


def test_limits_of_queries_that_are_set_live_apply_at_once() -> None:
    driver = Driver()
    partition, range_id = driver.partition, driver.partition.ledger.range_id
    live = {"queries.waiting": LiveSetting(value=2)}
    partition.set_controls(partition.controls.set(live, [], range_id), driver.now)
    for number in range(3):
        request = SlotRequest(f"token {number}", b"gateway", "", 1, driver.now, driver.now + 60.0)
        if number < 2:
            partition.allocator.request(request, driver.now)
        else:
            with pytest.raises(Overloaded):
                partition.allocator.request(request, driver.now)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownSetting) as refused:
        check_setting("rate_per_secnd", 5)
    assert refused.value.remedy == "Did you mean 'rate_per_second'?"


def test_the_rate_is_changed_while_tasks_wait() -> None:
    driver = Driver()
    partition, range_id = driver.partition, driver.partition.ledger.range_id
    driver.add(200)
    for rate, per_10_seconds in ((2.0, 20), (5.0, 50), (None, None)):
        live = {"rate_per_second": LiveSetting(value=rate)}
        partition.set_controls(partition.controls.set(live, [], range_id), driver.now)
        driver.turn()
        if per_10_seconds is None:
            assert len(driver.take(slots=100)) == 100
            continue
        found = 0
        for _ in range(1_000):
            found += len(driver.take(slots=10))
            driver.pass_time(0.01)
        assert per_10_seconds - 2 <= found <= per_10_seconds + 2
