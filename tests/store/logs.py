"""A log that remembers what it was told."""

from __future__ import annotations

from typing import Any


class Heard:
    """Implements `StoreLog`."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []

    def info(self, event: str, **_fields: Any) -> None:  # noqa: ANN401
        self.infos.append(event)

    def warning(self, event: str, **_fields: Any) -> None:  # noqa: ANN401
        self.warnings.append(event)
