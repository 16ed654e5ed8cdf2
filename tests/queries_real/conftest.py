"""The loops that people use."""

from tests.client.conftest import run

__all__ = ["run"]
