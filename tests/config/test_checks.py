"""Each range at its end and past it, and settings that are wrong only together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.config import check, cores, describe, is_loopback, load
from maitred.config.checks import ENVELOPE_BYTES
from maitred.errors import InvalidSetting
from maitred.schema import ANY_NAME, fit
from maitred.security.secrets import Hashed
from maitred.settings import Limits, Namespace, Node, Queue, Restarts, User

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.schema import SettingKind

HASHED = str(Hashed(1024, 1, 1, bytes(16), bytes(32)))


def edges() -> list[Any]:
    """Every end of every range in the schema, so that none can be added without a test."""
    found = []
    for row in describe():
        for kind in row.kind.alternatives:
            found += [
                pytest.param(row.name, kind, inside, outside, id=f"{row.name}-{inside}")
                for inside, outside in _ends(row.kind if kind.ranges is None else kind)
            ]
    return found


def _ends(kind: SettingKind) -> list[tuple[float | str, float | str]]:
    ranges, step = kind.ranges, 1 if kind.bare is int else 0.001
    if ranges is None:
        return []
    ends: list[tuple[float | str, float | str]] = []
    if ranges.ge is not None:
        ends.append((ranges.ge, ranges.ge - step))
    if ranges.gt is not None:
        ends.append((ranges.gt + step, ranges.gt))
    if ranges.le is not None:
        ends.append((ranges.le, ranges.le + step))
    if ranges.lt is not None:
        ends.append((ranges.lt - step, ranges.lt))
    if ranges.min_length and not kind.is_hidden:
        ends.append(("x", ""))
    return ends


@pytest.mark.parametrize(("name", "kind", "inside", "outside"), edges())
def test_ranges(name: str, kind: SettingKind, inside: object, outside: object) -> None:
    # At its end a value fits its setting; whether it goes with the others is another question.
    fit(kind, inside, name, "here")
    with pytest.raises(InvalidSetting) as refused:
        load(None, {}, flags(name, outside))
    assert kind.words() in refused.value.sentence
    assert refused.value.sentence.startswith(f"{name.replace(ANY_NAME, 'shop/*')} is ")


def flags(name: str, value: object) -> dict[str, object]:
    """One setting; those of what has names of its own are only set as a whole."""
    group, named, rest = name.partition(f".{ANY_NAME}.")
    if not named:
        return {name: value}
    for part in reversed(rest.split(".")):
        value = {part: value}
    return {group: {"shop/*": value}}


def test_there_are_as_many_ranges_as_one_would_think() -> None:
    assert len(edges()) > 40


def test_ports_of_all_shards_have_to_exist() -> None:
    check(Node(port=65_531, shards=4))
    check(Node(port=0, shards=1_024))
    check(Node(port=65_535 - cores()))
    with pytest.raises(InvalidSetting, match="up to 65,531"):
        check(Node(port=65_532, shards=4))
    with pytest.raises(InvalidSetting, match="beyond 65,535"):
        check(Node(port=65_536 - cores()))


def test_the_largest_payload_has_to_fit_a_frame() -> None:
    check(Node(limits=Limits(frame_bytes=10**6, payload_bytes=10**6 - ENVELOPE_BYTES)))
    with pytest.raises(InvalidSetting, match="can never arrive") as refused:
        check(Node(limits=Limits(frame_bytes=10**6, payload_bytes=10**6 - ENVELOPE_BYTES + 1)))
    assert "Raise limits.frame_bytes to 1,000,001" in str(refused.value.remedy)


def test_the_first_pause_is_the_shortest() -> None:
    check(Node(restarts=Restarts(first_seconds=5, longest_seconds=5)))
    with pytest.raises(InvalidSetting, match=r"first_seconds is 5\.1"):
        check(Node(restarts=Restarts(first_seconds=5.1, longest_seconds=5)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"old": 0}, "lacks new, start, end"),
        ({"old": 0, "new": 8, "start": 2, "end": 1}, "after its end"),
        ({"old": 0, "new": 8, "start": "tomorrow", "end": 1}, "not a time"),
        ({"old": 0, "new": -8, "start": 0, "end": 1}, "negative"),
        ({"old": 0, "new": 1.5, "start": 0, "end": 1}, "not a whole number"),
        ({"old": 0, "new": 8, "start": 0, "end": 1, "by": 3}, "unknown 'by'"),
    ],
)
def test_gradual_changes_that_make_no_sense(given: dict[str, int | float | str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=f"spread_batch cannot be used. .*{said}"):
        check(Node(spread_batch=given))
    check(Node(spread_batch={"old": 0, "new": 8, "start": 0, "end": 1}))


@pytest.mark.parametrize("name", ["*", "shop/*", "shop/orders", "shop/orders/small", "café/заказы"])
def test_queues_that_can_be_set(name: str) -> None:
    check(Node(queues={name: Queue()}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop", "not namespace/queue"),
        ("**", "not namespace/queue"),
        ("/orders", "namespace is empty"),
        ("shop/", "queue is empty"),
        ("*/orders", "cannot be patterns"),
        ("*/*", "cannot be patterns"),
        ("shop/or*", "cannot be patterns"),
        ("shop:1/orders", "has a colon"),
        ("shop/or:ders", "has a colon"),
        ("shop//_sys/orders/1", "names partitions"),
        ("shop/" + "x" * 256, "256 bytes long"),
        ("shop/ orders", "spaces at its ends"),
    ],
)
def test_queues_that_nobody_can_have(name: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        check(Node(queues={name: Queue()}), {"queues": "the file a.toml"})
    assert "queues (from the file a.toml) has settings for" in refused.value.sentence
    assert "'shop/*'" in str(refused.value.remedy)


def test_quotas_are_for_namespaces_that_can_exist() -> None:
    for name in ("*", "shop", "café"):
        check(Node(namespaces={name: Namespace()}))
    for name, said in (("sh*", "cannot be patterns"), ("a:b", "has a colon")):
        with pytest.raises(InvalidSetting, match=said) as refused:
            check(Node(namespaces={name: Namespace()}), {"namespaces": "the file a.toml"})
        assert "namespaces (from the file a.toml) has quotas for" in refused.value.sentence


def test_the_store_has_an_address_that_is_never_shown() -> None:
    check(Node(store="postgresql://me:secret@db/tasks"))
    check(Node(store="postgres://me:secret@db/tasks"))
    for wrong in ("mysql://me:secret@db", "secret", "db:5432"):
        with pytest.raises(InvalidSetting, match=r"^store \(from the file\) is no") as refused:
            check(Node(store=wrong), {"store": "the file"})
        assert wrong not in str(refused.value)
        assert "postgresql://" in str(refused.value.remedy)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.0", "127.255.255.255", "::1", "localhost", "LocalHost"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    check(Node(host=host))


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "126.255.255.255", "128.0.0.0", "::2", "example.org", "127.1", "*"],  # noqa: S104
)  # fmt: skip
def test_a_public_address_needs_users_or_a_decision(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidSetting, match="there are no users") as refused:
        check(Node(host=host))
    for way_out in ("users", "public_without_auth = true", "`--public-without-auth`"):
        assert way_out in str(refused.value.remedy)
    check(Node(host=host, public_without_auth=True))
    check(Node(host=host, users={"alice": User(secret=HASHED)}))


def test_a_public_address_with_users_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text("")
    check(Node(host="::", users_file=str(tmp_path / "users.toml")))


def test_an_error_says_where_the_setting_came_from(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("host = '::'")
    with pytest.raises(InvalidSetting, match=r"host \(from the file .*a\.toml\) is '::'"):
        load(str(file), {}, {})
    with pytest.raises(InvalidSetting, match=r"port \(from the command line\) is 65,535"):
        load(None, {}, {"port": 65_535})
    with pytest.raises(InvalidSetting, match=r"users.a.secret \(from the variable MAITRED_USERS\)"):
        load(None, {"MAITRED_USERS": '{"a": {"secret": "x"}}'}, {})


def test_users_are_checked_with_their_file(tmp_path: Path) -> None:
    alice = User(secret=HASHED)
    with pytest.raises(InvalidSetting, match="not a hashed secret"):
        check(Node(users={"alice": replace(alice, secret="open")}))  # noqa: S106
    with pytest.raises(InvalidSetting, match="has a colon"):
        check(Node(users={"alice": replace(alice, permissions={"a:b": ["work"]})}))
    with pytest.raises(InvalidSetting, match="cannot be read"):
        check(Node(users_file=str(tmp_path / "missing.toml")))


def test_tls_files_have_to_exist(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'")
    with pytest.raises(InvalidSetting, match=f"certificate {tmp_path}/c.pem cannot be read"):
        load(str(tmp_path / "a.toml"), {}, {})


def test_every_setting_has_a_name_a_type_and_a_reason() -> None:
    rows = describe()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert {"port", "limits.frame_bytes", "tls.key", "users.<name>.secret", "log.level"} <= {*names}
    for row in rows:
        assert row.type, row.name
        assert row.reason.endswith("."), f"{row.name} has no docstring in maitred.settings"
    defaults = {row.name: row.default for row in rows}
    assert defaults["port"] == 4747
    assert defaults["limits.in_flight"] == 1_024
    required = [row.name for row in rows if row.required]
    assert required == [
        "tls.certificate",
        "tls.key",
        "users.<name>.secret",
        "jwt.issuer",
        "jwt.audience",
    ]
