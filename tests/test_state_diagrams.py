"""docs/architecture.md has the states of a task and of a query as their tables have them.

    python -m tests.test_state_diagrams

writes the diagrams of the page anew.
"""

from __future__ import annotations

from pathlib import Path

from maitred.dispatch.query_states import FOLLOWS
from maitred.matching.task import BEGINNINGS, TABLE, State, TaskEvent

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
COMMAND = "python -m tests.test_state_diagrams"
BEGIN = f"<!-- The diagrams below are written by a program: {COMMAND} -->\n"
END = "<!-- End of the diagrams. -->\n"


def diagrams() -> str:
    """All of them, as the page has them."""
    return f"A task:\n\n{_task_diagram()}\nA query:\n\n{_query_diagram()}"


def _task_diagram() -> str:
    lines = [f"[*] --> {state.name}: {how}" for state, how in BEGINNINGS.items()]
    events: dict[tuple[State, State], list[str]] = {}
    for change in TABLE:
        for before, after in change.items():
            name = change.event.name.lower().replace("_", " ")
            events.setdefault((before, after), []).append(name)
    lines += [
        f"{before.name} --> {after.name}: {', '.join(names)}"
        for (before, after), names in sorted(events.items())
    ]
    return _mermaid([*lines, f"{State.OVER.name} --> [*]"])


def _query_diagram() -> str:
    lines = ["[*] --> waiting"]
    lines += [f"{before} --> {after}" for before in FOLLOWS for after in sorted(FOLLOWS[before])]
    return _mermaid([*lines, *(f"{status} --> [*]" for status in FOLLOWS if not FOLLOWS[status])])


def _mermaid(lines: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"```mermaid\nstateDiagram-v2\n{body}```\n"


def _parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def test_the_page_has_the_diagrams_that_the_tables_give() -> None:
    assert _parts()[1] == "\n" + diagrams() + "\n", f"run {COMMAND}"


def test_every_event_and_state_of_a_task_is_in_the_table() -> None:
    assert [change.event for change in TABLE] == list(TaskEvent)
    reached = {*BEGINNINGS, *(after for change in TABLE for after in change.values())}
    assert reached == set(State)


def write() -> None:
    """Write the diagrams into the page."""
    before, _, after = _parts()
    PAGE.write_text(f"{before}{BEGIN}\n{diagrams()}\n{END}{after}")


if __name__ == "__main__":
    write()
