"""docs/architecture.md has a diagram of every state table.

    python -m tests.test_state_diagrams

writes the diagrams of the page anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.dispatch.query_states import FOLLOWS
from maitred.matching.task import BEGINNINGS, TABLE, State, TaskEvent
from maitred.membership.view import MEMBER_TABLE
from maitred.node.connection_states import CONNECTION_TABLE
from maitred.node.keeper import CHILD_TABLE
from maitred.routing.counts import COUNTS_TABLE
from maitred.states import StateTable
from maitred.worker.lifecycle import WORKER_TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
COMMAND = "python -m tests.test_state_diagrams"
BEGIN = f"<!-- The diagrams below are written by a program: {COMMAND} -->\n"
END = "<!-- End of the diagrams. -->\n"

TASK: Final = StateTable[State, TaskEvent](
    "task",
    BEGINNINGS,
    {
        state: {change.event: change[state] for change in TABLE if state in change}
        for state in State
    },
)
QUERY: Final = StateTable[str, str](
    "query",
    {"waiting": ""},
    {before: {after: after for after in following} for before, following in FOLLOWS.items()},
)
TABLES: Final[Sequence[StateTable[Any, Any]]] = (
    TASK,
    QUERY,
    COUNTS_TABLE,
    WORKER_TABLE,
    CONNECTION_TABLE,
    CHILD_TABLE,
    MEMBER_TABLE,
)
"""Every table of the page, in its order."""


def diagrams() -> str:
    """Return all diagrams as the page has them."""
    return "\n".join(
        f"A {table.name}:\n\n```mermaid\n{chr(10).join(table.mermaid())}\n```\n" for table in TABLES
    )


def _parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def test_the_page_has_the_diagrams_that_the_tables_give() -> None:
    assert _parts()[1] == "\n" + diagrams() + "\n", f"run {COMMAND}"


def test_every_event_of_a_task_is_in_the_table() -> None:
    assert [change.event for change in TABLE] == list(TaskEvent)


def write() -> None:
    """Write the diagrams into the page."""
    before, _, after = _parts()
    PAGE.write_text(f"{before}{BEGIN}\n{diagrams()}\n{END}{after}")


if __name__ == "__main__":
    write()
