"""What operators see of arguments and results: nothing that is hidden, whoever says that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred.node.task_privacy import DEPTH_MAX, SEARCHED_BYTES, HandlerKnowledge, TaskArguments
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.redaction import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

NAMES = ("article", "card", "note", "pin", "amount")

SECRETS: tuple[str | bytes | int, ...] = (
    "4111-1111-1111-1111",
    "Grüße-an-Zoë-Ωμέγα",
    b"\xff\xfe\x00raw-\x81-key",
    4111111111111111,
)
"""Values that are hidden, each long enough to be found wherever it is repeated."""

harmless = st.none() | st.booleans() | st.integers(0, 99) | st.sampled_from(["ok", "", b"\0", 1.5])


def shape(names: Sequence[str], hidden: Sequence[str] = (), *, function: str = "shop.pay") -> bytes:
    return encode_shape(HandlerShape(function, [(one, "any", True) for one in names], list(hidden)))


def older(names: Sequence[str]) -> bytes:
    """As a worker announces it that does not know what hiding is."""
    return msgpack.encode(["shop.pay", [[one, "any", True] for one in names]])


def seen(
    call: object, hidden: Collection[int] | None = None, announced: Sequence[bytes] = ()
) -> TaskArguments:
    return TaskArguments(msgpack.encode(call), hidden, HandlerKnowledge.of(list(announced)))


def plain(arguments: TaskArguments) -> Any:  # noqa: ANN401 - arguments
    body = arguments.shown().body
    return None if body is None else msgpack.decode(body)


def is_in(secret: str | bytes | int, body: bytes) -> bool:
    """Whether a value is anywhere in msgpack, as it is or as text or bytes."""
    forms = [msgpack.encode(secret)]
    if isinstance(secret, int):
        forms.append(str(secret).encode())
    else:
        forms.append(secret.encode() if isinstance(secret, str) else secret)
    return any(form in body for form in forms)


def results(secret: str | bytes | int) -> st.SearchStrategy[Any]:
    """Return results that repeat a value: as it is, inside of a text or of bytes, as a key, and
    these in lists and maps."""
    text = str(secret) if isinstance(secret, int) else secret
    inside = f"<{text}>" if isinstance(text, str) else b"<" + text + b">"
    raw = text.encode() if isinstance(text, str) else text
    leaves = st.sampled_from(
        [secret, text, inside, raw, b"\xc3" + raw, msgpack.Ext(5, raw), {secret: 1}, {(1, text): 2}]
    )
    return st.recursive(
        leaves | harmless,
        lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some),
        max_leaves=6,
    )


any_shapes = st.lists(
    st.lists(st.sampled_from(NAMES), unique=True).flatmap(
        lambda names: (
            st.just(older(names))
            | st.lists(st.sampled_from(names or ["none"]), unique=True).map(
                lambda hidden: shape(names, hidden)
            )
        )
    )
    | st.sampled_from([b"", b"\xc1", msgpack.encode({"of": "a later release"})]),
    max_size=4,
)


def nothing_leaks(
    arguments: TaskArguments, secrets: Sequence[str | bytes | int], repeated: object
) -> None:
    """Neither the arguments nor a filter nor the result tell a secret."""
    for told in (arguments.shown(), arguments.result(msgpack.encode(repeated))):
        assert (told.body is None) == bool(told.withheld)
        assert not any(is_in(secret, told.body or b"") for secret in secrets)
    for name in (*NAMES, "0", "1", "2", "3", "4"):
        is_there, value = arguments.value(name)
        assert is_there or value is None
        assert value not in secrets


@given(data=st.data())
def test_what_the_producer_hides_is_seen_nowhere(data: st.DataObject) -> None:
    """Whatever shapes are announced: the workers may have other versions of the handler."""
    names = data.draw(st.permutations(NAMES))
    hidden = data.draw(st.sets(st.integers(0, 4), min_size=1))
    given_to = [data.draw(harmless) for _ in names]
    secrets = [data.draw(st.sampled_from(SECRETS)) for _ in hidden]
    for at, secret in zip(sorted(hidden), secrets, strict=True):
        given_to[at] = secret
    by_name = data.draw(st.booleans())
    call = dict(zip(names, given_to, strict=True)) if by_name else given_to
    announced = data.draw(any_shapes)
    repeated = data.draw(results(secrets[0]))
    nothing_leaks(seen(call, tuple(hidden), announced), secrets, repeated)


@given(data=st.data())
def test_what_a_worker_hides_is_seen_nowhere(data: st.DataObject) -> None:
    """Whatever other workers announce, whose handlers hide nothing, or something else."""
    names = data.draw(st.permutations(NAMES))
    hidden = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    secret = data.draw(st.sampled_from(SECRETS))
    call: Any = {name: secret if name in hidden else data.draw(harmless) for name in names}
    if not data.draw(st.booleans()):
        call = [call[name] for name in names]
    announced = [*data.draw(any_shapes), shape(names, hidden), *data.draw(any_shapes)]
    told = data.draw(st.sampled_from([None, ()]))
    nothing_leaks(seen(call, told, announced), [secret], data.draw(results(secret)))


@given(call=st.lists(harmless, max_size=7), announced=any_shapes)
def test_without_knowledge_nothing_is_shown(call: list[Any], announced: list[bytes]) -> None:
    """A worker that announces no parameters, or in a form of a later release, may hide any."""
    unknown = [b"", b"\xc1", msgpack.encode({"of": "a later release"})]
    for unreadable in unknown:
        arguments = seen(call, None, [*announced, unreadable])
        assert arguments.hides
        assert arguments.shown() == (None, "unknown")
        assert arguments.result(msgpack.encode(1)) == (None, "unknown")
        assert arguments.value("0") == (False, None)
    assert seen(call).shown() == (None, "unknown")


def test_the_word_of_the_producer_is_enough() -> None:
    arguments = seen(["book", "4111", 2], (1,))
    assert plain(arguments) == ["book", HIDDEN, 2]
    assert seen(["book"], ()).result(b"\xa4book") == (b"\xa4book", "")


@given(
    call=st.lists(harmless, min_size=1, max_size=5),
    hidden=st.lists(st.sampled_from(NAMES), unique=True),
    before=st.sampled_from([[], [older(NAMES)], [older(NAMES[:2])], [shape(NAMES[::-1])]]),
)
def test_each_argument_has_its_name(
    call: list[Any], hidden: list[str], before: list[bytes]
) -> None:
    """By the handler that was seen last, and the places that any of them hides."""
    arguments = seen(call, None, [shape(NAMES, hidden), *before])
    expected = {
        name: HIDDEN if name in hidden else value for name, value in zip(NAMES, call, strict=False)
    }
    assert plain(arguments) == expected
    for place, value in enumerate(call):
        found = (False, None) if NAMES[place] in hidden else (True, value)
        assert arguments.value(NAMES[place]) == found
        assert arguments.value(str(place)) == found
    assert arguments.value(str(len(call))) == (False, None)
    assert plain(seen(expected, None, [shape(NAMES, hidden), *before])) == expected


def test_more_arguments_than_names_are_an_array() -> None:
    assert plain(seen([1, 2, 3], None, [older(["a", "b"])])) == [1, 2, 3]
    assert seen([1, 2, 3], None, [older(["a", "b"])]).value("a") == (False, None)
    assert seen([1, 2, 3], None, [older(["a", "b"])]).value("2") == (True, 3)


def test_an_older_shape_takes_nothing_back() -> None:
    announced = [older(["article", "card"]), shape(["article", "card"], ["card"])]
    assert plain(seen(["book", "4111"], None, announced)) == {"article": "book", "card": HIDDEN}
    assert plain(seen(["book", "4111"], None, announced[:1])) == {"article": "book", "card": "4111"}


def test_what_no_handler_has_a_parameter_for_is_hidden_with_the_others() -> None:
    """It may be the hidden parameter of a version that is gone."""
    announced = [shape(["article", "card"], ["card"])]
    assert plain(seen(["book", "old note", "4111"], None, announced)) == ["book", HIDDEN, HIDDEN]
    assert plain(seen({"article": "book", "crad": "4111"}, None, announced)) == {
        "article": "book",
        "crad": HIDDEN,
    }
    # The producer knew its handler.
    assert plain(seen(["book", "4111", "note"], (1,), announced)) == ["book", HIDDEN, "note"]


def test_a_worker_that_hides_a_parameter_that_it_has_not_is_not_understood() -> None:
    assert seen(["4111"], (), [shape(["article"], ["card"])]).shown() == (None, "unknown")


@pytest.mark.parametrize("call", [[], ["book"], {"article": "book"}, {}])
def test_a_hidden_parameter_that_is_left_out_withholds_the_result(call: object) -> None:
    """Its value is a default, which only the handler knows."""
    arguments = seen(call, None, [shape(["article", "card"], ["card"])])
    assert arguments.shown().body is not None
    assert arguments.result(msgpack.encode("paid with 4111")) == (None, "unknown")


@pytest.mark.parametrize("secret", SECRETS)
def test_the_rest_of_a_result_is_shown(secret: str | bytes | int) -> None:
    arguments = seen(["book", secret], (1,))
    result = [{"paid": True, "with": secret, "rest": 1.5}, [None, b"\0\1", "book"]]
    body, withheld = arguments.result(msgpack.encode(result))
    assert not withheld
    assert body is not None
    expected = [{"paid": True, "with": HIDDEN, "rest": 1.5}, [None, b"\0\1", "book"]]
    assert msgpack.decode(body) == expected
    text, _ = arguments.result(msgpack.encode(f"paid {secret!r}!"))
    assert msgpack.decode(text or b"").startswith("paid ")


def test_parts_of_hidden_values_in_lists_and_maps_are_found() -> None:
    arguments = seen([{"cards": ["4111-1111", {"5500-0000": 1}]}], (0,))
    body, _ = arguments.result(msgpack.encode(["4111-1111", {"5500-0000": "4111-1111"}, "free"]))
    assert msgpack.decode(body or b"") == [HIDDEN, {HIDDEN: HIDDEN}, "free"]


def test_a_moment_is_found_and_others_stay_what_they_are() -> None:
    moment = msgpack.Ext(-1, b"\x65\x53\xf1\x00")
    body, _ = seen([moment], (0,)).result(msgpack.encode([moment, 1]))
    assert body == msgpack.encode([HIDDEN, 1])
    body, _ = seen(["4111-1111"], (0,)).result(msgpack.encode([moment, 1]))
    assert msgpack.decode(body or b"") == msgpack.decode(msgpack.encode([moment, 1]))


def test_a_result_that_cannot_be_searched_is_withheld() -> None:
    arguments = seen(["4111-1111"], (0,))
    deep = b"\x91" * DEPTH_MAX + b"\xa94111-1111"
    assert arguments.result(deep) == (None, "unreadable")
    assert arguments.result(b"\xc1") == (None, "unreadable")
    assert arguments.result(msgpack.encode("x" * SEARCHED_BYTES)) == (None, "size")
    assert seen(["free"], ()).result(deep) == (deep, "")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\xa2\xff\xfe", b"\x91" * 100_000 + b"\xc0"])
def test_arguments_that_are_no_msgpack(payload: bytes) -> None:
    for hidden in (None, (), (0,)):
        arguments = TaskArguments(payload, hidden, HandlerKnowledge([], is_complete=False))
        assert arguments.shown() == (None, "unreadable")
        assert arguments.value("0") == (False, None)
        if hidden != ():
            assert arguments.result(b"\xc0") == (None, "unknown")


@given(call=harmless)
def test_what_is_no_call_is_shown_if_nothing_is_hidden(call: object) -> None:
    assert seen(call, ()).shown() == (msgpack.encode(call), "")
    assert seen(call, (0,)).shown() == (None, "unknown")
    assert seen(call, (0,)).value("0") == (False, None)
    assert seen(call, (0,)).result(b"\xc0") == (None, "unknown")
