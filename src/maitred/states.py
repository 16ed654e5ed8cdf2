"""State machines as tables: which state an event leads to, and the diagram of the table.

A table is the only place that decides a change of state: a pair of state and event that it does
not list raises `InternalError`. docs/architecture.md has the diagrams, which are generated from the
tables. Where each task or query changes its state, plain dicts of the same content are faster
(`matching/task.py`, `dispatch/query_states.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from maitred.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

StateT = TypeVar("StateT", bound="Enum | str")
EventT = TypeVar("EventT", bound="Enum | str")


@dataclass(frozen=True)
class StateTable(Generic[StateT, EventT]):
    """Which state follows which, by the event that causes the change."""

    name: str
    """The thing that has these states, as a noun: "task"."""
    beginnings: Mapping[StateT, str]
    """The states in which the thing begins, each with how it comes to begin there, or ""."""
    transitions: Mapping[StateT, Mapping[EventT, StateT]]
    """Every state, with the events that can happen in it and the state that each leads to. A state
    without events is final."""

    def __post_init__(self) -> None:
        """Raise `InternalError` if a state is named but not listed, or cannot be reached."""
        found = dict.fromkeys(self.beginnings)
        remaining = list(found)
        while remaining:
            for after in self.transitions.get(remaining.pop(), {}).values():
                if after not in found:
                    found[after] = None
                    remaining.append(after)
        if found.keys() != self.transitions.keys():
            wrong = ", ".join(sorted(map(label, found.keys() ^ self.transitions.keys())))
            raise InternalError(f"States of a {self.name} without a row or a way to them: {wrong}.")

    def after(self, state: StateT, event: EventT) -> StateT:
        """Return the state that the event leads to; raise `InternalError` for an unlisted pair."""
        try:
            return self.transitions[state][event]
        except KeyError:
            raise InternalError(
                f"A {self.name} that is {label(state)} got the event {label(event)}."
            ) from None

    def mermaid(self) -> Iterator[str]:
        """Yield the lines of a Mermaid state diagram. A transition has no label where the event is
        called like the state that it leads to."""
        yield "stateDiagram-v2"
        for state, how in self.beginnings.items():
            yield _arrow("[*]", label(state), [how])
        for before, events in self.transitions.items():
            for after in self.transitions:
                causes = [label(event) for event, then in events.items() if then == after]
                if causes:
                    yield _arrow(label(before), label(after), causes)
            if not events:
                yield _arrow(label(before), "[*]", [])


def label(named: Enum | str) -> str:
    """Return the name of a state or of an event as people read it."""
    return named.name.lower().replace("_", " ") if isinstance(named, Enum) else named


def _arrow(before: str, after: str, causes: list[str]) -> str:
    text = ", ".join(cause for cause in causes if cause not in {"", after})
    before, after = (state.replace(" ", "_") for state in (before, after))
    return f"    {before} --> {after}: {text}" if text else f"    {before} --> {after}"
