"""A bounded memory of the least recently used kind, which also tells whether it ever evicted.

Until the first eviction, a queue that the memory does not know is new. Afterwards it may be a queue
that was evicted, so the caller must not take "unknown" for "first time".
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Holds at most `capacity` values by key; storing one more evicts the least recently used."""

    __slots__ = ("_capacity", "_values", "forgot")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self.forgot = False

    def get(self, key: Key) -> Value | None:
        """Return the value and make it the most recently used; None if the key is unknown."""
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
