"""Whether a program that uses maitred traces: its code says so, or its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.telemetry.start import app_tracing, program_tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.telemetry.tracing import Tracing

PREFIX: Final = "MAITRED_TELEMETRY__"


def tracing_of(
    wanted: bool | Tracing | None,
    environment: Mapping[str, str],
) -> Tracing | None:
    """Return the tracing of a program; None if it does not trace. What is None, the environment
    decides, with the same variables as for nodes and workers."""
    if isinstance(wanted, bool):
        return program_tracing() if wanted else None
    if wanted is not None or not any(name.startswith(PREFIX) for name in environment):
        return wanted
    from maitred.config import telemetry_settings  # only then: it takes a while to import

    return app_tracing(telemetry_settings(environment))
