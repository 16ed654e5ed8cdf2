"""Errors inside of answers: of parts that did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.gateway.admin.answers import ToldError, UnreachablePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maitred.client.answers import Silent
    from maitred.client.statistics import Unreachable
    from maitred.errors import MaitredError


def told_error(problem: MaitredError) -> ToldError:
    """Return the error for JSON."""
    return ToldError(problem.code, problem.sentence, problem.remedy, problem.outcome.value)


def unreachable(part: str, silent: Mapping[Any, Silent]) -> list[UnreachablePart]:
    """Return the parts that did not answer; `part` is the field of `UnreachablePart` that names
    one."""
    return [
        UnreachablePart(error=told_error(one.error), **{part: name}) for name, one in silent.items()
    ]


def unreachable_shards(silent: Iterable[Unreachable]) -> list[UnreachablePart]:
    """Return the shards that did not answer."""
    return [
        UnreachablePart(error=told_error(one.error), node=one.address, shard=one.shard)
        for one in silent
    ]
