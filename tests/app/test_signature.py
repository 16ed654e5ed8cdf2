"""Arguments and results: what fits, what does not, and what is said then."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import AsyncIterator, Generator, Iterator  # noqa: TC003 - annotations are read
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from maitred.app.app import App
from maitred.app.signature import Signature, encode
from maitred.errors import InvalidArguments, InvalidHandler, InvalidResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BytesIO


@dataclass
class Box:
    width: int
    tags: list[str]


class Point(msgspec.Struct):
    x: int
    next: Point | None = None


class Colour(enum.Enum):
    RED = "red"


class Row(TypedDict):
    name: str


def plain(url: str, size: int) -> str:
    raise NotImplementedError


def rich(
    box: Box,
    point: Point,
    colour: Colour,
    at: datetime,
    key: UUID,
    price: Decimal,
    blob: bytes,
    row: Row,
    mode: Literal["a", "b"],
    pairs: dict[str, tuple[int, float]],
    many: set[int],
    maybe: Box | None = None,
) -> dict[str, Point]:
    raise NotImplementedError


def keyword(url: str, size: int = 1, *, deep: Box | None = None, name: str = "x") -> None: ...


def positional_only(first: int, /, second: int = 2) -> None: ...


def untyped(first: Any, second: Any = None) -> Any: ...  # noqa: ANN401 - whatever comes


def there_and_back(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:  # noqa: ANN401
    signature = Signature(function)
    return signature.read(signature.write(args, kwargs))


def test_all_that_msgspec_knows_comes_out_as_it_went_in() -> None:
    values = (
        Box(1, ["a"]),
        Point(1, Point(2)),
        Colour.RED,
        datetime(2026, 1, 2, tzinfo=UTC),
        UUID(int=7),
        Decimal("1.10"),
        b"\x00",
        {"name": "n"},
        "b",
        {"a": (1, 2.0)},
        {1, 2},
    )
    assert there_and_back(rich, *values) == ((*values, None), {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("u", 3), {}),
        (("u",), {"size": 3}),
        ((), {"size": 3, "url": "u"}),
    ],
)
def test_one_call_has_one_form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = Signature(plain)
    assert signature.write(args, kwargs) == encode(["u", 3])


def test_defaults_are_the_workers() -> None:
    assert Signature(keyword).write(("u",), {}) == encode(["u"])
    assert there_and_back(keyword, "u") == (("u", 1), {"deep": None, "name": "x"})
    assert there_and_back(keyword, "u", name="y") == (("u", 1), {"deep": None, "name": "y"})
    assert there_and_back(positional_only, 1, second=5) == ((1, 5), {})
    assert there_and_back(untyped, {"a": [1]}) == (({"a": [1]}, None), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("u", "3"), {}, "argument 'size' of plain does not fit"),
        ((b"u", 3), {}, "argument 'url'"),
        (("u", 3.5), {}, "argument 'size'"),
        (("u", True), {}, "argument 'size'"),
        (("u",), {}, "lacks its argument 'size'"),
        ((), {"size": 3}, "lacks its argument 'url'"),
        (("u", 3, 4), {}, "takes 2 arguments without a name, not 3"),
        (("u", 3), {"depth": 3}, "no parameter 'depth'"),
        (("u", 3), {"url": "v"}, "'url' twice"),
        (("u", object()), {}, "'size' of plain cannot be serialised"),
        (("u", 2**70), {}, "'size' of plain cannot be serialised"),
        (("\ud800", 1), {}, "'url' of plain cannot be serialised"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArguments, match=words) as caught:
        Signature(plain).write(args, kwargs)
    assert caught.value.code == "invalid-arguments"


def test_the_place_inside_an_argument_is_named() -> None:
    wrong = Box(1, [2])  # type: ignore[list-item]
    with pytest.raises(InvalidArguments, match=r"'deep' .*`str`, got `int` \(at deep\.tags\[0\]\)"):
        Signature(keyword).write(("u",), {"deep": wrong})


def test_positional_only_parameters_have_no_name() -> None:
    with pytest.raises(InvalidArguments, match="no parameter 'first'"):
        Signature(positional_only).write((), {"first": 1})


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\xa1u", encode(["u"]), encode(["u", 1, 2]), encode(["u", "v"]), b"\x92\xa1"],
)
def test_a_payload_of_another_version_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidArguments):
        Signature(plain).read(payload)


def test_a_parameter_added_at_the_end_with_a_default_fits_old_payloads() -> None:
    def newer(url: str, size: int, quality: int = 90) -> str:
        raise NotImplementedError

    old = Signature(plain).write(("u", 3), {})
    assert Signature(newer).read(old) == (("u", 3, 90), {})


def test_results_are_read_as_annotated() -> None:
    read = Signature(rich).read_result
    assert read(encode({"a": Point(1)})) == {"a": Point(1)}
    with pytest.raises(InvalidResult):
        read(encode(3))
    assert Signature(keyword).read_result(b"\xc0") is None
    assert Signature(untyped).read_result(encode([1])) == [1]


def variadic(*urls: str) -> None: ...


def named(**urls: str) -> None: ...


def path(place: Path) -> None: ...


def nested(places: list[dict[str, Path]]) -> None: ...


def result() -> Path:
    raise NotImplementedError


def two_structs(one: Box | Point) -> None: ...


def hidden(one: BytesIO) -> None: ...


def gap(*, one: int = 1, two: int) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[Box]:
    yield Box(1, [])


def long_form() -> Generator[int, None, None]:
    yield 1


def bare():  # type: ignore[no-untyped-def]  # noqa: ANN201
    yield 1


def unannotated(first: int, second=None): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201


def thing() -> object: ...


class Desk:
    def price(self, symbol: str) -> None: ...

    @classmethod
    def all(cls, symbol: str) -> None: ...


def misnamed() -> list[int]:  # type: ignore[misc]
    yield 1


def unwritable() -> Iterator[Path]:
    yield Path()


def test_what_is_awaited_is_known() -> None:
    async def coroutine() -> None: ...

    assert Signature(coroutine).is_async
    assert not Signature(plain).is_async


def test_generators_are_streams_of_rows() -> None:
    for function, is_async in ((generator, False), (stream, True), (long_form, False)):
        signature = Signature(function)
        assert (signature.is_stream, signature.is_async) == (True, is_async)
    assert not Signature(plain).is_stream
    boxes = Signature(stream)
    assert boxes.read_row(encode(Box(2, ["a"]))) == Box(2, ["a"])
    assert boxes.read_result(encode([Box(2, ["a"])])) == [Box(2, ["a"])]
    with pytest.raises(InvalidResult):
        boxes.read_row(encode("no box"))
    assert Signature(bare).read_result(encode([1, "a"])) == [1, "a"]


def test_arguments_may_come_by_name() -> None:
    read = Signature(keyword).read
    assert read(encode({"url": "u", "name": "y"})) == (("u", 1), {"deep": None, "name": "y"})
    assert read(encode({"size": 3, "url": "u"})) == (("u", 3), {"deep": None, "name": "x"})
    many = {f"n{number}": number for number in range(20)}
    assert Signature(untyped).read(encode({"first": many})) == ((many, None), {})
    for wrong, words in (
        ({"size": 3}, "missing required field `url`"),
        ({"url": 3}, "argument 'url' of keyword does not fit"),
        ({"url": "u", "deep": {"width": "w", "tags": []}}, r"at deep\.width"),
        ({"url": "u", "colour": 1}, "unknown field `colour`"),
    ):
        with pytest.raises(InvalidArguments, match=words):
            read(encode(wrong))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (misnamed, "is a generator, but its return annotation"),
        (unannotated, "parameter 'second' has no annotation"),
        (Desk.price, "is a method, and its callers have nothing to pass as 'self'"),
        (Desk.all.__func__, "is a method, and its callers have nothing to pass as 'cls'"),  # type: ignore[attr-defined]
        (lambda it: it, "parameter 'it' has no annotation"),
        (thing, "result is or contains the type object"),
        (unwritable, "result is or contains the type Path"),
        (Box, "is not a function"),
        (functools.partial(plain, "u"), "is not a function"),
        (variadic, r"takes \*urls"),
        (named, r"takes \*\*urls"),
        (path, "parameter 'place' is or contains the type Path"),
        (nested, "parameter 'places' is or contains the type Path"),
        (result, "result is or contains the type Path"),
        (two_structs, "parameter 'one' cannot be serialised"),
        (hidden, "annotations cannot be read"),
        (gap, "'two' has no default"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_at_once(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(InvalidHandler, match=words) as caught:
        Signature(function)
    assert caught.value.code == "invalid-handler"


def test_a_bound_method_is_a_function_like_others() -> None:
    assert Signature(Desk().price).read(encode(["x"])) == (("x",), {})


@given(some.text(), some.integers(-(2**63), 2**64 - 1))
def test_plain_values_survive(url: str, size: int) -> None:
    assert there_and_back(plain, url, size) == ((url, size), {})


@given(some.binary(max_size=40))
def test_no_payload_breaks_a_worker(payload: bytes) -> None:
    with contextlib.suppress(InvalidArguments):
        Signature(keyword).read(payload)


def test_all_queues_that_a_function_serves_share_its_signature() -> None:
    app = App("shop")

    def handle(number: int) -> int:
        return number

    def other(number: int) -> int:
        return number

    first, second = app.handler("orders")(handle), app.handler("returns")(handle)
    assert first.signature is second.signature
    assert app.handler("others")(other).signature is not first.signature
