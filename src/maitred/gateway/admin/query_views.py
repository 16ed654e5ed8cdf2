"""Shows the queries of this gateway: to their own users, and to users who may look."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.errors import MaitredError, PermissionDenied
from maitred.gateway.http.answers import ListedQueries
from maitred.protocol.private_data import public_query, queues_with_texts, without_hidden
from maitred.protocol.queries import QueryFilter
from maitred.protocol.tasks import Signatures, SignaturesFound
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway
    from maitred.settings import Permission


QUEUES_LOOKED_UP: Final = 200
"""Most queues whose handlers are looked up for one list; the texts of others are left out."""

LOOK_UP_SECONDS: Final = 1.0
"""How long the root of a queue has to answer what its handlers hide."""


class QueryViews:
    """The views of queries."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def queries(
        self, caller: AdminCaller, params: Mapping[str, Any], namespace: str
    ) -> ListedQueries:
        """Return rows of the query table, with texts and messages as far as the caller may see
        them."""
        wanted = QueryFilter(namespace=namespace, **params)
        restrict_to_own(caller, wanted, "read")
        rows = self._gateway.ask().table.rows(wanted)
        if not caller.allows(namespace, "reveal"):
            rows = [one if one.user == caller.user else public_query(one) for one in rows]
        names = queues_with_texts(rows)[:QUEUES_LOOKED_UP]
        known = await asyncio.gather(
            *(announced_signatures(self._gateway, *name) for name in names)
        )
        return ListedQueries(without_hidden(rows, dict(zip(names, known, strict=True))))


async def announced_signatures(
    gateway: RequestingGateway, namespace: str, queue: str
) -> list[bytes] | None:
    """Return what the handlers of a queue have announced; None if that cannot be found out."""
    message = Signatures(namespace, queue, TASKS, 0, 0)
    try:
        answer = await gateway.requester().request(message, LOOK_UP_SECONDS)
    except MaitredError:
        return None
    return cast("SignaturesFound", answer).signatures


def restrict_to_own(caller: AdminCaller, wanted: QueryFilter, permission: Permission) -> None:
    """Restrict the filter to the caller's own queries, unless the caller has the permission for
    those of others. Raise `PermissionDenied` if it names another user, or if the caller may not
    even query."""
    if caller.identity is None or caller.allows(wanted.namespace, permission):
        return
    caller.require(wanted.namespace, "query")
    if wanted.user not in {"", caller.user}:
        raise PermissionDenied(
            f"Queries of other users need the permission {permission!r} in the namespace "
            f"{wanted.namespace!r}."
        )
    wanted.user = caller.user
