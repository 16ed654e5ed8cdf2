"""Who is compared: the gateway's policies, and the rivals outside."""

from __future__ import annotations

from studies.contest.settings import OURS, POLICIES

RIVALS = (
    "haproxy leastconn",
    "haproxy maxconn",
    "haproxy agent",
    "nginx least_conn",
    "nginx max_conns",
)

__all__ = ["OURS", "POLICIES", "RIVALS"]
