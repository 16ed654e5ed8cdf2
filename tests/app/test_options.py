"""Options: what they come to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from maitred import App
from maitred.app.options import conditions
from maitred.client.enqueue_batches import Conditions
from maitred.errors import InvalidArgument, InvalidHandler, InvalidName, UnknownChoice
from maitred.matching.records import Terms


def test_the_defaults_are_the_protocols() -> None:
    assert conditions({}) == Conditions() == Conditions(2, 0.0, 0.0, Terms())


def test_each_option_goes_to_its_place() -> None:
    given = conditions(
        {
            "delay": 5,
            "priority": 0,
            "expires": 60,
            "retries": 1,
            "backoff": (0.5, 8),
            "timeout": 30,
            "retention": 3600,
        }
    )
    assert given == Conditions(0, 5.0, 60.0, Terms(1, 0.5, 8.0, 30.0, 3600.0))


def test_a_call_changes_only_what_it_names() -> None:
    base = conditions({"retries": 1, "timeout": 30, "priority": 4})
    assert conditions({"priority": 0}, base) == Conditions(0, 0.0, 0.0, Terms(1, timeout=30.0))
    assert conditions({"backoff": 900}, base).terms.backoff_longest == 900


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 5},
        {"priority": -1},
        {"priority": "high"},
        {"priority": True},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e12},
        {"timeout": "30"},
        {"retries": 1.5},
        {"retries": -1},
        {"backoff": (3, 2)},
        {"backoff": (1, 2, 3)},
        {"retention": None},
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"option '{next(iter(wrong))}'"):
        conditions(wrong)


def test_a_misspelt_option_names_the_right_one() -> None:
    with pytest.raises(UnknownChoice, match="retries"):
        conditions({"retry": 3})


def test_apps_and_handlers_refuse_what_cannot_be() -> None:
    with pytest.raises(InvalidName):
        App("a:b")
    with pytest.raises(InvalidArgument):
        App("shop", node="http://somewhere")
    app = App("shop")
    with pytest.raises(InvalidName):
        app.handler("")
    with pytest.raises(UnknownChoice, match="weighted"):
        app.handler("q", selection="weigthed")

    @app.handler("q")
    def one() -> None: ...

    with pytest.raises(InvalidHandler, match="has a handler already: one"):

        @app.handler("q")
        def two() -> None: ...


def test_whether_queries_are_idempotent() -> None:
    app = App("shop")

    @app.handler("a", idempotent=True)
    def once() -> None: ...

    @app.handler("b")
    def twice() -> None: ...

    assert once.idempotent
    assert not twice.idempotent
    assert once.options(priority=0).idempotent
    assert not once.options(idempotent=False).idempotent
    wrong: Any = "yes"
    with pytest.raises(InvalidArgument, match="idempotent"):
        twice.options(idempotent=wrong)
    assert conditions({"idempotent": True}) == Conditions(), "no matter to tasks"
