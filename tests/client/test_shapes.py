"""Shapes of handlers: they say enough to refuse, and never refuse what the handler takes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable  # noqa: TC003 - annotations are read
from datetime import datetime  # noqa: TC003 - likewise
from decimal import Decimal  # noqa: TC003 - likewise
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred import App
from maitred.app.signature import Signature
from maitred.client.shapes import argument_check
from maitred.errors import InvalidArguments, InvalidHandler, NoHandlerFits
from maitred.protocol.handler_shapes import HandlerShape, decode_shape, encode_shape
from maitred.protocol.queries import SIGNATURE_BYTES


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Line:
    article: str
    amount: int = 1


class Order(msgspec.Struct, forbid_unknown_fields=True):
    lines: list[Line]
    note: str | None = None
    then: Order | None = None


class Tagged(msgspec.Struct, tag=True):
    value: int


class Fields(TypedDict, total=False):
    a: int


def plain(url: str, size: int = 5, ratio: float = 1.0, on: bool = True) -> None: ...
def nested(order: Order, colours: list[Colour], prices: dict[str, float]) -> None: ...
def odd(
    when: datetime,
    price: Decimal,
    id: UUID,  # noqa: A002
    kind: Literal["a", 3],
    raw: bytes | None,
) -> None: ...
def loose(x: Any, y: Tagged, z: tuple[int, str], *, w: Fields | None = None) -> None: ...  # noqa: ANN401
def limited(n: Annotated[int, msgspec.Meta(ge=0)], s: set[int] | str) -> None: ...
def nothing() -> None: ...


HANDLERS = [plain, nested, odd, loose, limited, nothing]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.sampled_from(["red", "a", "2026-01-01T00:00:00Z", "1.5", str(UUID(int=5)), "", "x"])
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["url", "size", "lines", "article", "amount", "a", "w", "x", "y", "z", "n", "order"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FITTING = [
    ["https://a", 3, 1, False],
    {"url": "u", "ratio": 2},
    [{"lines": [{"article": "a"}], "then": {"lines": []}}, ["red"], {"x": 1}],
    ["2026-01-01T00:00:00Z", "1.5", str(UUID(int=5)), 3, None],
    [None, {"type": "Tagged", "value": 3}, [1, "a"], {"a": 1}],
    [3, [1, 2]],
    [3, "s"],
    [],
]


@pytest.mark.parametrize("function", HANDLERS, ids=lambda one: one.__name__)
@given(arguments=st.one_of(VALUES, st.lists(VALUES, max_size=5), st.sampled_from(FITTING)))
def test_a_shape_takes_whatever_its_handler_takes(
    function: Callable[..., Any], arguments: object
) -> None:
    signature = Signature(function)
    check = argument_check(signature.describe())
    assert check is not None
    payload = msgpack.encode(arguments)
    try:
        signature.read(payload)
    except InvalidArguments:
        return  # the shape may take it all the same
    assert check.misfit(payload) is None


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (plain, ["u", "large"], "The argument 'size' of plain does not fit: Expected `int`"),
        (plain, {"url": "u", "size": "large"}, "The argument 'size' of plain does not fit"),
        (plain, [], "plain lacks its argument 'url'"),
        (plain, {}, "do not fit plain: Object missing required field `url`"),
        (plain, {"url": "u", "wide": 3}, "Object contains unknown field `wide`"),
        (plain, ["u", 1, 1.0, True, 5], "do not fit plain"),
        (nested, [{"lines": [{"article": 3}]}, [], {}], "(at order.lines[0].article)"),
        (nested, [{"lines": [], "nota": ""}, [], {}], "unknown field `nota`"),
        (nested, [{"lines": []}, ["green"], {}], "The argument 'colours' of nested"),
        (nested, [{"lines": []}, [], {"x": "y"}], "The argument 'prices' of nested"),
        (odd, ["yesterday", "1", str(UUID(int=5)), 3, None], "The argument 'when' of odd"),
        (odd, ["2026-01-01T00:00:00Z", "1", "x", 3, None], "The argument 'id' of odd"),
        (loose, [1, {}, [1], None], "The argument 'z' of loose"),
        (nothing, [1], "do not fit nothing"),
        (plain, "u", "do not fit plain: Expected `array`, got `str`"),
    ],
)
def test_what_does_not_fit_is_named(
    function: Callable[..., Any], arguments: object, said: str
) -> None:
    check = argument_check(Signature(function).describe())
    assert check is not None
    problem = check.misfit(msgpack.encode(arguments))
    assert isinstance(problem, NoHandlerFits)
    assert said in problem.sentence


MANY: dict[str, Any] = {f"a_rather_long_name_{n}": Order for n in range(100)}
TOO_MANY: dict[str, Any] = {f"{name}_{name}_{name}": hint for name, hint in MANY.items()}


def with_parameters(names: dict[str, Any]) -> Callable[..., None]:
    scope: dict[str, Any] = {}
    exec(f"def long({', '.join(names)}): ...", scope)  # noqa: S102 - a function with many parameters
    made: Callable[..., None] = scope["long"]
    made.__annotations__ = names
    return made


def test_a_long_signature_says_less() -> None:
    """And one that cannot even name its parameters takes anything."""
    told = Signature(with_parameters(MANY)).describe()
    assert 0 < len(told) <= SIGNATURE_BYTES
    check = argument_check(told)
    assert check is not None
    problem = check.misfit(b"\x90")
    assert problem is not None
    assert "'a_rather_long_name_0'" in problem.sentence
    assert Signature(with_parameters(TOO_MANY)).describe() == b""


# Hidden parameters


@pytest.mark.parametrize("function", HANDLERS, ids=lambda one: one.__name__)
@given(arguments=st.one_of(VALUES, st.lists(VALUES, max_size=5), st.sampled_from(FITTING)))
def test_hidden_names_are_announced_and_change_no_check(
    function: Callable[..., Any], arguments: object
) -> None:
    signature = Signature(function)
    hidden = signature.names[:2]
    announced = signature.describe(hidden)
    assert decode_shape(announced).hidden == list(hidden)
    check, plain_check = argument_check(announced), argument_check(signature.describe())
    assert check is not None
    assert plain_check is not None
    payload = msgpack.encode(arguments)
    found, expected = check.misfit(payload), plain_check.misfit(payload)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.sentence == expected.sentence


def test_a_long_signature_still_says_what_is_hidden() -> None:
    names = list(MANY)
    announced = Signature(with_parameters(MANY)).describe((names[0], names[-1]))
    shape = decode_shape(announced)
    assert len(announced) <= SIGNATURE_BYTES
    assert [name for name, _, _ in shape.parameters] == names
    assert shape.hidden == [names[0], names[-1]]


def test_a_handler_that_cannot_say_what_it_hides_is_refused() -> None:
    """Its tasks would be shown to operators as if nothing were hidden."""
    app = App("shop")
    with pytest.raises(InvalidHandler, match="the names of its 100 parameters") as caught:
        app.handler("orders", hide=[next(iter(TOO_MANY))])(with_parameters(TOO_MANY))
    assert "dataclass" in str(caught.value.remedy)
    app.handler("orders")(with_parameters(TOO_MANY))  # without hidden ones it may be


def test_shapes_of_older_workers_hide_nothing() -> None:
    older = msgpack.encode(["f", [["a", "int", True]]])
    assert decode_shape(older).hidden == []
    check = argument_check(older)
    assert check is not None
    assert check.misfit(msgpack.encode([1])) is None
    assert check.misfit(msgpack.encode(["x"])) is not None


def test_older_peers_read_shapes_that_name_hidden_parameters() -> None:
    """They know two fields, and skip the third."""

    class OlderShape(msgspec.Struct, array_like=True, frozen=True):
        function: str
        parameters: list[tuple[str, Any, bool]]

    read = msgpack.decode(Signature(plain).describe(("url",)), type=OlderShape)
    assert read.function == "plain"
    assert read.parameters[0] == ("url", "str", True)


@pytest.mark.parametrize(
    "announced",
    [
        b"",
        b"nonsense",
        msgpack.encode(["f"]),
        msgpack.encode(["f", [["a", "int"]]]),
        msgpack.encode(["f", [["a", ["object", "x", 1], True]]]),
        msgpack.encode(["f", [["a", "int", False], ["b", "int", True], ["a", "int", True]]]),
    ],
)
def test_what_cannot_be_understood_refuses_nothing(announced: bytes) -> None:
    check = argument_check(announced)
    assert check is None or check.misfit(msgpack.encode([1, 2, 3])) is None


def test_words_of_a_newer_worker_take_anything() -> None:
    said = HandlerShape("f", [("a", "colour", True), ("b", ["tree", "int"], True)])
    check = argument_check(encode_shape(said))
    assert check is not None
    assert check.misfit(msgpack.encode([1, {"x": 2}])) is None
    assert check.misfit(msgpack.encode([1])) is not None


def test_a_type_that_never_ends_is_cut() -> None:
    deep: Any = "int"
    for _ in range(500):
        deep = ["list", deep]
    check = argument_check(encode_shape(HandlerShape("f", [("a", deep, True)])))
    assert check is None or check.misfit(msgpack.encode([[[]]])) is None
