from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.security.permissions import EVERYTHING, NOTHING, Permissions
from maitred.settings import Permission, User

ALL: tuple[Permission, ...] = get_args(Permission)
NAMESPACES = ("shop", "bank", "*")
granted = st.dictionaries(st.sampled_from(NAMESPACES), st.lists(st.sampled_from(ALL)))


@given(granted, st.sampled_from(("shop", "bank", "elsewhere")), st.sampled_from(ALL))
def test_a_permission_holds_where_it_was_given_and_some_include_others(
    given: dict[str, list[Permission]], namespace: str, permission: Permission
) -> None:
    here = {*given.get(namespace, ()), *given.get("*", ())}
    user = User(secret="x", permissions=given)  # noqa: S106
    includes = {permission, "admin", *(("operate",) if permission == "read" else ())}
    assert Permissions.of(user).allows(namespace, permission) == bool(here & includes)


@pytest.mark.parametrize("permission", ALL)
def test_everything_and_nothing(permission: Permission) -> None:
    assert EVERYTHING.allows("whatever", permission)
    assert not NOTHING.allows("whatever", permission)


def test_nobody_gets_a_permission_that_does_not_exist() -> None:
    assert not EVERYTHING.allows("shop", "fly")  # type: ignore[arg-type]


@given(granted, granted)
def test_equal_ones_allow_the_same(
    one: dict[str, list[Permission]], other: dict[str, list[Permission]]
) -> None:
    left, right = Permissions(one), Permissions(other)
    same = all(
        left.allows(namespace, permission) == right.allows(namespace, permission)
        for namespace in ("shop", "bank", "elsewhere")
        for permission in ALL
    )
    assert (left == right) == same
    assert left != right or hash(left) == hash(right)
    assert left != "shop"
