"""What the tests of membership share: a PostgreSQL server, as the tests of stores have it."""

from __future__ import annotations

from tests.store.conftest import postgres_server

__all__ = ["postgres_server"]
