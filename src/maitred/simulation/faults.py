"""The faults of the simulated network, each with a name.

Probabilities are per segment (what one host writes to one connection in one instant) unless said
otherwise. The defaults are a well-behaved network in one data centre; `stormy` is what scenarios
run under. Nothing is ever reordered or lost within a stream, because TCP does neither: a lost
packet shows as a delay, a lost path as silence, a lost peer as a reset.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities and magnitudes of the network; immutable, so that a run can be replayed."""

    delay_min_seconds: float = 0.000_1
    """Shortest time one segment takes from host to host, one way."""

    delay_max_seconds: float = 0.000_5
    """Longest usual time, one way; delays are uniform in between."""

    loopback_delay_seconds: float = 0.000_02
    """One way within one host. Such connections are split but meet no other fault."""

    spike_probability: float = 0.0
    """A segment is late by up to `spike_seconds`: a lost packet, a full switch."""

    spike_seconds: float = 0.25
    """Longest spike; 0.2 s is the shortest retransmission timeout of Linux."""

    cut_probability: float = 0.0
    """The connection is reset at both ends, and what was in flight is lost."""

    half_open_probability: float = 0.0
    """From this segment on the path drops everything silently."""

    half_open_both_probability: float = 0.5
    """The share of the half-open paths that drop everything in both directions."""

    refuse_probability: float = 0.0
    """The probability that an attempt to connect is refused although a process listens."""

    split_probability: float = 0.0
    """A delivery is broken up: its first bytes come now, the others after another delay."""

    kill_orderly_probability: float = 0.0
    """The probability that the peer of a killed process sees an end of stream, not a reset.

    Kernels do that when the killed process had read everything that came.
    """

    window_bytes: int = 128 * 1024
    """Most bytes of one direction that are in flight or unread; beyond it the writer has to hold
    them, and its protocol is paused."""

    connect_timeout_seconds: float = 10.0
    """An attempt to connect to silence fails after this. Linux takes 127 s by default."""

    connect_retry_seconds: float = 1.0
    """First gap between two tries within one attempt to connect; doubles, as in TCP."""

    retransmission_timeout_seconds: float = 20.0
    """A connection with bytes unacknowledged this long fails with ETIMEDOUT. Linux takes about 15
    minutes by default; services that care set TCP_USER_TIMEOUT to something like this."""

    retransmission_gap_max_seconds: float = 2.0
    """After a path heals, held bytes are sent within this (or the length of the outage)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_probability") and not 0.0 <= value <= 1.0:
                raise InvalidArgument(f"{field.name} is {value!r}, not from 0 to 1.")
            if field.name.endswith("_seconds") and not 0.0 <= value < float("inf"):
                raise InvalidArgument(f"{field.name} is {value!r}, not a finite length of time.")
        if self.delay_min_seconds > self.delay_max_seconds:
            raise InvalidArgument("delay_min_seconds is greater than delay_max_seconds.")
        if self.window_bytes < 1:
            raise InvalidArgument("window_bytes must be at least 1.")
        if self.connect_retry_seconds <= 0.0:
            raise InvalidArgument("connect_retry_seconds must be greater than 0.")

    @classmethod
    def stormy(cls) -> Faults:
        """Return faults of every kind, so often that a run of some virtual minutes meets each."""
        return cls(
            delay_max_seconds=0.005,
            spike_probability=0.02,
            cut_probability=0.003,
            half_open_probability=0.001,
            refuse_probability=0.05,
            split_probability=0.1,
            kill_orderly_probability=0.3,
        )

    @classmethod
    def drawn(cls, random: Random) -> Faults:
        """Draw a storm; each fault is absent in half of the storms.

        With all faults always on, the frequent ones would hide what the rare ones find.
        """
        storm = cls.stormy()
        probabilities = {
            name: random.choice((0.0, random.random() * 2.0 * getattr(storm, name)))
            for name in _probabilities()
        }
        return replace(
            storm,
            delay_max_seconds=random.choice((0.000_5, 0.005, 0.05)),
            window_bytes=random.choice((1_024, 16 * 1_024, 128 * 1_024)),
            **probabilities,
        )

    def denser(self, factor: float) -> Faults:
        """Return the same network with `factor` times as many cuts and half-open links, so that a
        short storm, or one with little traffic, has as many of them as a long one."""
        return replace(
            self,
            cut_probability=min(1.0, self.cut_probability * factor),
            half_open_probability=min(1.0, self.half_open_probability * factor),
        )

    def calm(self) -> Faults:
        """Return the same network with every probability at 0."""
        return replace(self, **dict.fromkeys(_probabilities(), 0.0))  # type: ignore[arg-type]  # names are fields


def _probabilities() -> list[str]:
    return [field.name for field in fields(Faults) if field.name.endswith("_probability")]
