"""GET /v1/problems in front of a real node: what is wrong, as far as the caller may see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from maitred.protocol.handler_shapes import HandlerShape
from maitred.protocol.tasks import Failure
from tests.gateway.admin_stage import SECONDS, admin_stage
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from pathlib import Path

OPEN = HandlerShape("pay", [("order", "int", True)], [])
"""Of a handler that hides nothing."""

REFUSED = Failure("PaymentError", "the bank refused order 77", "line 1")


@in_a_loop
async def test_problems_are_told_as_far_as_one_may_see_them(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails", shape=OPEN)
        await here.serve_dead(client, "mails", [[77]], REFUSED)
        await here.add(client, "bills", [[1], [2]])
        await here.add(client, "secrets", [[1]], namespace="other")

        async def told(user: str, **params: str) -> dict[tuple[str, str], str]:
            found: dict[str, Any] = await here.get("/v1/problems", user=user, **params)
            assert found["unreachable"] == []
            return {(one["queue"], one["kind"]): one["why"] for one in found["problems"]}

        unserved = "no worker serves it"
        shop = {("bills", "unserved"): unserved, ("mails", "failing"): "PaymentError (1)"}
        other = {("secrets", "unserved"): unserved}
        # The message of an error is private data.
        revealed = shop | {("mails", "failing"): "PaymentError: the bank refused order 77 (1)"}
        async with asyncio.timeout(SECONDS):
            seen = await told("reader")
            while ("mails", "failing") not in seen:
                await asyncio.sleep(0.05)  # dead letters are counted in the store once a second
                seen = await told("reader")
        assert seen == shop
        assert await told("auditor") == revealed
        assert await told("reader") == shop, "what another user saw is not remembered for this one"
        assert await told("stranger") == other
        assert await told("boss") == other | revealed
        assert await told("boss", namespace="other") == other
        for path, user in (("?namespace=other", "reader"), ("", "customer")):
            assert (await here.call("GET", f"/v1/problems{path}", user=user))[0] == 403
