"""A bounded memory of the queues used last.

It also tells whether it ever forgot anything. As long as it did not, a queue that it does not know
is new; afterwards the queue may be one that was forgotten, and whoever asks must not take "unknown"
for "first time".
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """At most `capacity` values by key; storing one more forgets the least recently used."""

    __slots__ = ("_capacity", "_values", "forgot")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self.forgot = False

    def get(self, key: Key) -> Value | None:
        """The value, which becomes the most recently used, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)
            self.forgot = True

    def values(self) -> Iterable[Value]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)
