"""The log of a world under the fuzzer."""

from __future__ import annotations

from typing import Any


class QuietLog:
    """A log in which nothing may be said that a person would be woken up for."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def debug(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def info(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.problems.append(f"{event}: {fields!r}")

    exception = error

    def bind(self, **_fields: Any) -> QuietLog:  # noqa: ANN401
        return self
