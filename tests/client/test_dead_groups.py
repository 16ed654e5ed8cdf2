"""Dead letters by error: messages that are all different do not make an answer without bound."""

from __future__ import annotations

from maitred.client.dead_groups import GROUPS_MAX, DeadGroupCount
from maitred.protocol.inspection import ListedTask


def letter(number: int, message: str, error: str = "CardError") -> ListedTask:
    return ListedTask(
        partition=1,
        sequence=number,
        state="dead",
        ended_at=float(number),
        error=error,
        message=message,
        reason="failed",
    )


def test_messages_beyond_the_bound_share_a_group() -> None:
    groups = DeadGroupCount()
    groups.add([letter(number, f"order {number}") for number in range(GROUPS_MAX)])
    assert len(groups.ordered()) == GROUPS_MAX
    groups.add([letter(number, f"order {number}") for number in range(1_000, 3_000)])
    groups.add([letter(5_000, "order 1"), letter(6_000, "late", "Timeout")])
    found = groups.ordered()
    assert groups.looked_at == GROUPS_MAX + 2_002 == sum(one.count for one in found)
    assert len(found) == GROUPS_MAX + 2
    assert (found[0].error, found[0].message, found[0].count) == ("CardError", "", 2_000)
    assert (found[0].newest_at, found[0].example) == (2_999.0, "1/2999")
    assert (found[1].message, found[1].count, found[1].example) == ("order 1", 2, "1/5000")
    assert [one.message for one in found if one.error == "Timeout"] == [""]
