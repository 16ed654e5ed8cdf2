"""The receiver of all tests of telemetry in this process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.telemetry.receiver import MARK, Received, Receiver, started_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    with started_receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def _no_log_of_other_tests() -> Iterator[None]:
    """A process has one log, and OpenTelemetry's complaints go there; here each test has one."""
    yield
    logger = logging.getLogger("opentelemetry")
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture
def received(receiver: Receiver) -> Received:
    return Received(receiver)


@pytest.fixture
def marked(received: Received, monkeypatch: pytest.MonkeyPatch) -> Received:
    """The same for a test that exports from its own process."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"{MARK}={received.mark}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    return received
