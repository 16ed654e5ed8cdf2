"""Which queues there are: what the driver has to know of the app that the workers load."""

from __future__ import annotations

NAMESPACE = "default"
ECHO = "echo"
ROWS = "rows"
SLOTS = 8
ANY = "any"
NAPS = (ANY, *(f"{policy}-{slot}" for policy in ("turn", "least") for slot in range(SLOTS)))
"""Queues in which a query sleeps: one with all slots, and one for each slot of each rival."""
