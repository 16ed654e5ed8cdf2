"""Attempts that run while their partition gets another owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class RunningAttempt(Struct, array_like=True, gc=False):
    """An attempt at a task that a worker runs while its partition gets another owner."""

    sequence: int
    attempt: int
    holder: bytes
    """The worker that has it (`attempt_proofs.holder_of`); empty: an unknown one, since the parent
    partition did not tell which."""
    worker: str
    proof: bytes
    """The proof of the holder; empty: it is computed when the holder shows it."""
    lease_seconds: float
    """How long the lease still lasts."""
    revoked: bool = False
    """Whether a caller cancelled the task; its worker is told to stop."""
    running_seconds: float = 0.0
    """For how long the worker has had the task; 0: not known."""


class Inheritance(NamedTuple):
    """What the last owner of a partition told its next one."""

    attempts: Sequence[RunningAttempt]
    is_complete: bool
    """Whether no other attempt runs, so that nothing has to be waited for."""
    at: float
    """The loop's time at which it was told."""
