"""Items that wait in lines, one line per namespace, and are taken in turns: a long line delays only
its own items."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class FairLines(Generic[_Item]):
    """Lines of items that are served in rotation; within a line, in the order of arrival."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[_Item]] = OrderedDict()
        """Lines that have items, in the order in which they are served."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def length(self, line: str) -> int:
        """Return how many items wait in the line."""
        return len(self._lines.get(line, ()))

    def push(self, line: str, item: _Item) -> None:
        """Put the item at the end of the line."""
        waiting = self._lines.get(line)
        if waiting is None:
            waiting = self._lines[line] = deque()
        waiting.append(item)

    def take(self, most: int) -> list[_Item]:
        """Take up to `most` items: one of each line in turn. The line whose turn would be next is
        served first the next time."""
        taken: list[_Item] = []
        while self._lines and len(taken) < most:
            name, waiting = next(iter(self._lines.items()))
            taken.append(waiting.popleft())
            if waiting:
                self._lines.move_to_end(name)
            else:
                del self._lines[name]
        return taken
