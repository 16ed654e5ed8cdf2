"""What a shard says of itself, read by us and by scylla-driver."""

from __future__ import annotations

import pytest
from cassandra.protocol_features import ProtocolFeatures
from cassandra.shard_info import ShardingInfo
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import ProtocolViolation, UnsupportedVersion
from maitred.protocol.cql import decode_supported, encode_supported
from maitred.protocol.description import CQL_VERSION, VERSIONS, Description, agree
from maitred.protocol.frames import Opcode
from maitred.routing.tokens import sharding, token
from tests.protocol.driver import read_by_driver

texts = st.text(st.characters(codec="utf-8"), max_size=40)
ports = st.integers(0, 65535)


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    shards = draw(st.integers(1, 64))
    source_port = draw(ports)
    return Description(
        node=draw(texts),
        shard=draw(st.integers(0, shards - 1)),
        shards=shards,
        shard_ports=tuple(draw(st.just([]) | st.lists(ports, min_size=shards, max_size=shards))),
        frame_bytes=draw(st.integers(1, 2**40)),
        payload_bytes=draw(st.integers(0, 2**40)),
        in_flight=draw(st.integers(1, 2**40)),
        idle_seconds=draw(st.floats(min_value=0, exclude_min=True, allow_infinity=False)),
        spread_batch=draw(texts),
        ignore_msb=draw(st.integers(1, 20)),
        versions=tuple(draw(st.lists(st.integers(0, 2**31), max_size=5))),
        release=draw(texts),
        source_port=source_port,
        # Without that port there is nothing that would speak TLS on it.
        tls=draw(st.booleans()) if source_port else False,
    )


def plain(**changes: object) -> Description:
    values: dict[str, object] = {
        "node": "node",
        "shard": 1,
        "shards": 4,
        "shard_ports": (4748, 4749, 4750, 4751),
        "frame_bytes": 1000,
        "payload_bytes": 100,
        "in_flight": 10,
        "idle_seconds": 300.0,
        **changes,
    }
    return Description(**values)  # type: ignore[arg-type]


@given(descriptions())
def test_what_is_said_is_understood(description: Description) -> None:
    assert Description.from_supported(description.supported()) == description


@given(descriptions())
def test_and_over_the_wire_too(description: Description) -> None:
    body = encode_supported(description.supported())
    assert Description.from_supported(decode_supported(body)) == description


@given(descriptions(), st.binary(max_size=40))
def test_the_driver_understands_the_same(description: Description, key: bytes) -> None:
    message = read_by_driver(Opcode.SUPPORTED, encode_supported(description.supported()))
    assert message.cql_versions == [CQL_VERSION]
    features = ProtocolFeatures.parse_from_supported(message.options)
    info = features.sharding_info
    assert features.shard_id == description.shard
    assert info.shards_count == description.shards
    assert info.sharding_ignore_msb == description.ignore_msb
    plain_port, tls_port = info.shard_aware_port, info.shard_aware_port_ssl
    assert (tls_port if description.tls else plain_port) == (description.source_port or None)
    assert (plain_port if description.tls else tls_port) is None
    # Nothing is offered that we do not do.
    assert features.rate_limit_error is None
    assert features.lwt_info is None
    assert not features.tablets_routing_v1
    assert not features.tablets_routing_v2
    assert not features.use_metadata_id
    # And its arithmetic leads to the shard that ours does.
    theirs = ShardingInfo(
        str(features.shard_id),
        str(info.shards_count),
        info.partitioner,
        info.sharding_algorithm,
        str(info.sharding_ignore_msb),
        "",
        "",
    )
    ours = sharding(description.shards, description.ignore_msb)(key)
    assert theirs.shard_id_from_token(token(key)) == ours


def test_another_server_is_told_apart() -> None:
    with pytest.raises(ProtocolViolation, match="not maitred") as caught:
        Description.from_supported({"CQL_VERSION": ["3.0.0"], "SCYLLA_SHARD": ["0"]})
    assert caught.value.remedy


OPTIONAL = {"CQL_VERSION", "COMPRESSION", "PROTOCOL_VERSIONS", "SCYLLA_PARTITIONER"}
OPTIONAL |= {"SCYLLA_SHARDING_ALGORITHM"}


@pytest.mark.parametrize("key", sorted(plain().supported().keys() - OPTIONAL))
def test_a_description_that_lacks_something(key: str) -> None:
    said = dict(plain().supported())
    del said[key]
    with pytest.raises(ProtocolViolation):
        Description.from_supported(said)


@pytest.mark.parametrize("key", sorted(OPTIONAL))
def test_what_only_drivers_need_is_not_looked_at(key: str) -> None:
    said = dict(plain().supported())
    del said[key]
    assert Description.from_supported(said) == plain()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SCYLLA_SHARD", ["x"]),
        ("SCYLLA_SHARD", []),
        ("SCYLLA_SHARD", ["-1"]),
        ("SCYLLA_SHARD", ["4"]),
        ("SCYLLA_NR_SHARDS", ["0"]),
        ("SCYLLA_NR_SHARDS", ["-4"]),
        ("SCYLLA_NR_SHARDS", ["9" * 5000]),
        ("SCYLLA_SHARDING_IGNORE_MSB", ["64"]),
        ("SCYLLA_SHARDING_IGNORE_MSB", ["-1"]),
        ("SCYLLA_SHARD_AWARE_PORT", ["65536"]),
        ("SCYLLA_SHARD_AWARE_PORT", []),
        ("SCYLLA_SHARD_AWARE_PORT_SSL", ["x"]),
        ("MAITRED_VERSIONS", ["one"]),
        ("MAITRED_NODE", []),
        ("MAITRED_RELEASE", []),
        ("MAITRED_SPREAD_BATCH", []),
        ("MAITRED_SHARD_PORTS", ["1", "2", "3"]),
        ("MAITRED_SHARD_PORTS", ["1", "2", "3", "-1"]),
        ("MAITRED_SHARD_PORTS", ["1", "2", "3", "65536"]),
        ("MAITRED_FRAME_BYTES", ["0"]),
        ("MAITRED_PAYLOAD_BYTES", ["-1"]),
        ("MAITRED_IN_FLIGHT", ["0"]),
        ("MAITRED_IDLE_SECONDS", ["0"]),
        ("MAITRED_IDLE_SECONDS", ["-1"]),
        ("MAITRED_IDLE_SECONDS", ["nan"]),
        ("MAITRED_IDLE_SECONDS", ["inf"]),
    ],
)
def test_a_description_that_makes_no_sense(key: str, value: list[str]) -> None:
    with pytest.raises(ProtocolViolation):
        Description.from_supported({**plain().supported(), key: value})


@given(st.dictionaries(st.sampled_from(sorted(plain().supported())), st.lists(texts)))
def test_any_description_is_read_or_refused(changes: dict[str, list[str]]) -> None:
    try:
        read = Description.from_supported({**plain().supported(), **changes})
    except ProtocolViolation:
        return
    assert Description.from_supported(read.supported()) == read


def test_a_newer_node_may_say_more() -> None:
    said = {**plain().supported(), "MAITRED_WEATHER": ("fine",)}
    assert Description.from_supported(said) == plain()


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ([1], [1], 1),
        ([1, 2, 3], [1, 2], 2),
        ([2, 1], [1, 2], 2),
        ([1, 3], [1, 2, 3, 4], 3),
        ([1, 2], [2, 3], 2),
        (VERSIONS, VERSIONS, VERSIONS[-1]),
    ],
)
def test_the_newest_version_of_both(ours: list[int], theirs: list[int], agreed: int) -> None:
    assert agree(ours, theirs) == agreed
    assert agree(theirs, ours) == agreed


@pytest.mark.parametrize(
    ("client", "node", "told", "remedy"),
    [
        ([1], [2], ("client speaks 1,", "node 2 "), "Upgrade the client."),
        ([2, 3], [1], ("client speaks 2, 3,", "node 1 "), "Upgrade the node."),
        ([1], [], ("client speaks 1,", "node none "), "Upgrade the node."),
        ([1, 4], [2, 3], ("client speaks 1, 4,", "node 2, 3 "), "Upgrade the node."),
    ],
)
def test_no_version_in_common(
    client: list[int], node: list[int], told: tuple[str, str], remedy: str
) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        agree(client, node)
    assert all(part in caught.value.sentence for part in told)
    assert "unsupported protocol version" in caught.value.sentence
    assert caught.value.remedy == remedy
