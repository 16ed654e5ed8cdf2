"""What the tests of nodes share with those of stores: the engines."""

from tests.store.conftest import engine, postgres_server

__all__ = ["engine", "postgres_server"]
