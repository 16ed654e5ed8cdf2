"""Sources, their precedence, and what each of them refuses."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.config import describe, load, load_with_sources
from maitred.errors import InvalidSetting, UnknownSetting
from maitred.schema import names
from maitred.schema.toml_files import FILE_BYTES
from maitred.security.secrets import Hashed
from maitred.settings import Log, Node, Queue, Scaling

if TYPE_CHECKING:
    from pathlib import Path

HASHED = str(Hashed(1024, 1, 1, bytes(16), bytes(32)))


def written(directory: Path, text: str) -> str:
    file = directory / "maitred.toml"
    file.write_text(text)
    return str(file)


def test_without_sources_everything_has_its_default() -> None:
    assert load(None, {}, {}) == Node()


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path,
        "port = 1001\ndrain_seconds = 1\nshards = 1\n[limits]\nin_flight = 11\nconnections = 21\n",
    )
    environment = {
        "MAITRED_PORT": "1002",
        "MAITRED_DRAIN_SECONDS": "2",
        "MAITRED_LIMITS__IN_FLIGHT": "12",
    }
    loaded = load_with_sources(file, environment, {"port": 1003, "shards": None})
    node = loaded.node
    assert (node.port, node.drain_seconds, node.shards) == (1003, 2.0, 1)
    assert (node.limits.in_flight, node.limits.connections) == (12, 21)
    assert node.limits.turn_frames == Node().limits.turn_frames
    assert loaded.sources == {
        "port": "the command line",
        "drain_seconds": "the variable MAITRED_DRAIN_SECONDS",
        "limits.in_flight": "the variable MAITRED_LIMITS__IN_FLIGHT",
        "limits.connections": f"the file {file}",
        "shards": f"the file {file}",
    }


def test_flags_are_named_like_settings_one_by_one_or_as_a_group() -> None:
    one = load(None, {}, {"log.level": "debug"})
    group = load(None, {}, {"log": {"level": "debug"}})
    assert one == group == Node(log=Log(level="debug"))


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("PORT", "0", "port", 0),
        ("PORT", "+4_747", "port", 4747),
        ("DRAIN_SECONDS", "2.5e1", "drain_seconds", 25.0),
        ("DRAIN_SECONDS", "3", "drain_seconds", 3.0),
        ("PUBLIC_WITHOUT_AUTH", "true", "public_without_auth", True),
        ("PUBLIC_WITHOUT_AUTH", "False", "public_without_auth", False),
        ("HOST", "localhost", "host", "localhost"),
        ("DATA", "123", "data", "123"),
        ("SPREAD_BATCH", "8", "spread_batch", 8),
        ("LOG__FORMAT", "json", "log.format", "json"),
        ("LIMITS__FRAME_BYTES", "16_000_000", "limits.frame_bytes", 16_000_000),
        ("LIMITS", '{"in_flight": 3}', "limits.in_flight", 3),
    ],
)
def test_text_of_the_environment_becomes_what_the_setting_is(
    variable: str, text: str, path: str, value: object
) -> None:
    found: object = load(None, {f"MAITRED_{variable}": text}, {})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_one_of_a_group_beats_the_group_in_json() -> None:
    node = load(
        None,
        {
            "MAITRED_LIMITS__IN_FLIGHT": "5",
            "MAITRED_LIMITS": '{"in_flight": 4, "connections": 6}',
        },
        {},
    )
    assert (node.limits.in_flight, node.limits.connections) == (5, 6)


def test_users_are_one_setting_a_stronger_source_replaces_them_all(tmp_path: Path) -> None:
    file = written(tmp_path, f'[users.alice]\nsecret = "{HASHED}"')
    bob = {"bob": {"secret": HASHED, "permissions": {"*": ["admin"]}}}
    assert set(load(file, {}, {}).users) == {"alice"}
    node = load(file, {"MAITRED_USERS": json.dumps(bob)}, {})
    assert set(node.users) == {"bob"}
    assert node.users["bob"].permissions == {"*": ["admin"]}
    assert load(file, {"MAITRED_USERS": "{}"}, {}).users == {}


def test_queues_are_one_setting_with_groups_inside(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '[queues."shop/*"]\nlease_seconds = 3\nscaling.partitions_max = 2\n[queues."a/b.c"]',
    )
    node = load(file, {}, {})
    assert set(node.queues) == {"shop/*", "a/b.c"}
    assert node.queues["shop/*"] == Queue(lease_seconds=3.0, scaling=Scaling(partitions_max=2))
    stronger = load(file, {"MAITRED_QUEUES": '{"*": {"rate_per_second": 0.5}}'}, {})
    assert stronger.queues == {"*": Queue(rate_per_second=0.5)}
    with pytest.raises(InvalidSetting, match=r"queues.shop/\*.lease_seconds is 'long'"):
        load(None, {}, {"queues": '{"shop/*": {"lease_seconds": "long"}}'})
    with pytest.raises(UnknownSetting, match="lease_second") as refused:
        load(None, {}, {"queues": {"shop/*": {"lease_second": 1}}})
    assert "lease_seconds" in str(refused.value.remedy)


@pytest.mark.parametrize("group", ["USERS", "QUEUES"])
def test_what_has_names_of_its_own_is_one_variable(group: str) -> None:
    with pytest.raises(UnknownSetting) as refused:
        load(None, {f"MAITRED_{group}__SHOP": "{}"}, {})
    assert f"MAITRED_{group}, as JSON" in str(refused.value.remedy)


def test_variables_of_others_are_left_alone() -> None:
    others = {
        "MAITRED_URL": "maitred://x",
        "_MAITRED_COMPLETE": "bash_source",
        "PATH": "/bin",
        "maitred_port": "x",
        "MAITREDPORT": "x",
    }
    assert load(None, others, {}) == Node()


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("MAITRED_PROT", "'MAITRED_PORT'"),
        ("MAITRED_LIMITS_FRAME_BYTES", "'MAITRED_LIMITS__FRAME_BYTES'"),
        ("MAITRED_LIMITS__FRAME_BYTE", "'MAITRED_LIMITS__FRAME_BYTES'"),
        ("MAITRED_Port", "config list"),
        ("MAITRED_USERS__ALICE__SECRET", "MAITRED_USERS"),
        ("MAITRED_ZZZZZZ", "maitred config list"),
        ("MAITRED_", "config list"),
    ],
)
def test_unknown_variables(variable: str, near: str) -> None:
    with pytest.raises(UnknownSetting) as refused:
        load(None, {variable: "1"}, {})
    assert variable in refused.value.sentence
    assert "environment" in refused.value.sentence
    assert near in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MAITRED_PORT", "tcp://10.0.0.7:4747"),
        ("MAITRED_SERVICE_HOST", "10.0.0.7"),
        ("MAITRED_SERVICE_PORT_CQL", "4747"),
        ("MAITRED_PORT_4747_TCP_ADDR", "10.0.0.7"),
    ],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_explained(
    variable: str, value: str
) -> None:
    with pytest.raises(UnknownSetting, match=variable) as refused:
        load(None, {variable: value}, {})
    assert "enableServiceLinks" in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("prot = 1", "prot", "'port'"),
        ("[limit]\nin_flight = 1", "limit", "'limits'"),
        ("[limits]\nframe_byte = 1", "limits.frame_byte", "'limits.frame_bytes'"),
        ("frame_bytes = 1", "frame_bytes", "'limits.frame_bytes'"),
        (f'[users.a]\nsecret="{HASHED}"\nadmin=true', "users.a.admin", "config list"),
        (f'[users.a]\nsecrets="{HASHED}"', "users.a.secrets", "'users.a.secret'"),
        ("[tls]\nkeys = 'x'", "tls.keys", "'tls.key'"),
    ],
)
def test_unknown_keys_in_a_file_at_any_depth(
    tmp_path: Path, text: str, key: str, near: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UnknownSetting) as refused:
        load(file, {}, {})
    assert f"{key!r} (from the file {file})" in refused.value.sentence
    assert near in str(refused.value.remedy)


def test_unknown_flags() -> None:
    with pytest.raises(UnknownSetting, match=r"'prt' \(from the command line\).* 'port'"):
        load(None, {}, {"prt": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = '4747'", r"port is '4747' \(from the file .*whole number from 0 to 65,535"),
        ("port = true", "port is true"),
        ("port = 2026-11-15", "port is '2026-11-15'"),
        ("port = " + "9" * 30, "from 0 to 65,535"),
        ("host = ''", "host is ''.* not empty"),
        ('host = "a\\u0000b"', "host is"),
        ("data = 7", "data is 7 "),
        ("public_without_auth = 1", "it has to be true or false"),
        ("drain_seconds = nan", "drain_seconds is nan"),
        ("drain_seconds = inf", "drain_seconds is inf"),
        ("limits = 5", r"limits \(from the file .* is not a table"),
        ("users = 'x'", r"users \(from .* is not a table"),
        ("[telemetry]\nendpoint = 'host:4317'", "an address that begins with http:// or https://"),
        ("[log]\nlevel = 'loud'", "it has to be one of debug, info, warning, error"),
        ("spread_batch = 1.5", "spread_batch is 1.5"),
        ("spread_batch = true", "spread_batch is true"),
        (f'[users.a]\nsecret="{HASHED}"\npermissions.shop=["cook"]', "permissions.shop is .'cook'"),
        ("[users.a]\npermissions = {}", "users.a.secret is missing"),
        ("[users.'']\nsecret = 'x'", "users has the name ''"),
        ("[users.\"a\\n\"]\nsecret = 'x'", "users has the name"),
        ("[tls]", "tls.certificate is missing"),
        ("[tls]\ncertificate = 'x'", "tls.key is missing"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        load(written(tmp_path, text), {}, {})
    for leaked in ("Expected", "got `", "$."):
        assert leaked not in str(refused.value), "msgspec's own words"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PORT", ""),
        ("PORT", "1.5"),
        ("PORT", " 1"),
        ("PORT", "9" * 5_000),
        ("PORT", "\u0661"),
        ("DRAIN_SECONDS", "nan"),
        ("DRAIN_SECONDS", "1e999"),
        ("DRAIN_SECONDS", "soon"),
        ("PUBLIC_WITHOUT_AUTH", "1"),
        ("PUBLIC_WITHOUT_AUTH", "yes"),
        ("SPREAD_BATCH", "{"),
        ("SPREAD_BATCH", "[" * 100_000),
        ("LIMITS", "3"),
        ("HOST", ""),
        ("DATA", "\udc80"),
    ],
)
def test_text_that_is_not_the_setting(variable: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"the variable MAITRED_{variable}") as refused:
        load(None, {f"MAITRED_{variable}": text}, {})
    assert len(str(refused.value)) < 400, "however long the text was"


@pytest.mark.parametrize(
    "users",
    [
        "hunter2",
        '"hunter2"',
        '{"a": "hunter2"}',
        '{"a": {"secret": "hunter2"}}',
        '{"a": {"secret": ["hunter2"]}}',
    ],
)
def test_an_error_never_shows_what_could_be_a_secret(users: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load(None, {"MAITRED_USERS": users}, {})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"port = 1\nx y = 2\n", "not TOML: .*line 2, column 3"),
        (b"port = 1\nport = 2\n", "not TOML: .*line 2"),
        (b"port = 1\n\n# \xff\n", r"not UTF-8 \(line 3\)"),
        (b"a = " + b"[" * 100_000, "too deep"),
        (b"#" * (FILE_BYTES + 1), "larger than 16,777,216 bytes"),
        (b"a = " + b"9" * 5_000, "too long"),
        (b".".join([b"port"] * 2_000) + b" = 1", "too deep"),
        (b"[limits", "not TOML: .*line 1"),
    ],
)
def test_files_that_are_not_toml(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidSetting, match=said) as refused:
        load(str(file), {}, {})
    assert str(file) in refused.value.sentence


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.sampled_from(sorted(names(Node))), ANYTHING | st.dictionaries(st.text(), ANYTHING))
def test_whatever_is_given_is_taken_or_refused_in_words(name: str, value: object) -> None:
    variable = f"MAITRED_{name.upper().replace('.', '__')}"
    for environment, flags in (
        ({}, {name: value}),
        ({variable: str(value)}, {}),
        ({variable: json.dumps(value)}, {}),
    ):
        with suppress(InvalidSetting, UnknownSetting):
            load(None, environment, flags)


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_bytes(b"port = 1\n" + b"#" * (FILE_BYTES - 9))
    assert load(str(file), {}, {}).port == 1


@pytest.mark.parametrize("name", ["missing.toml", ".", "a\0b"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read") as refused:
        load(f"{tmp_path}/{name}", {}, {})
    assert refused.value.remedy


def test_paths_in_a_file_start_at_the_file_and_others_where_one_is(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text("")
    file = written(tmp_path, "data = 'here'\nusers_file = 'users.toml'")
    node = load(file, {}, {})
    assert node.data == str(tmp_path / "here")
    assert node.users_file == str(tmp_path / "users.toml")
    assert load(file, {"MAITRED_DATA": "there"}, {}).data == "there"
    assert load(file, {}, {"data": "there"}).data == "there"
    assert load(written(tmp_path, "data = '/abs'"), {}, {}).data == "/abs"


def test_toml_has_times_of_its_own(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "[spread_batch]\nold = 0\nnew = 8\n"
        "start = 2026-11-15T20:00:00Z\nend = 2026-11-15T22:00:00Z\n",
    )
    node = load(file, {}, {})
    assert isinstance(node.spread_batch, dict)
    assert node.spread_batch["start"] == "2026-11-15T20:00:00+00:00"


@pytest.mark.parametrize(
    "name", ["limits.turn_frames", "gateway.querying.warm", "limits.failures_per_name"]
)
def test_fixed_values_are_no_settings(tmp_path: Path, name: str) -> None:
    """They are for maitred's own tests, so no source can set them and no list names them."""
    *groups, last = name.split(".")
    file = tmp_path / "node.toml"
    file.write_text(f"[{'.'.join(groups)}]\n{last} = 1\n")
    variable = f"MAITRED_{name.upper().replace('.', '__')}"
    with pytest.raises(UnknownSetting):
        load(str(file), {}, {})
    with pytest.raises(UnknownSetting):
        load(None, {variable: "1"}, {})
    with pytest.raises(UnknownSetting):
        load(None, {}, {name: "1"})
    assert name not in {row.name for row in describe()}
    assert hasattr(Node().limits, "turn_frames")


def test_fixed_values_of_a_queue_are_no_settings() -> None:
    with pytest.raises(UnknownSetting):
        load(None, {}, {"queues": {"*": {"forwarding": {"children": 2}}}})
    assert Queue().forwarding.children == 20
