"""The contest for real: `python -m benchmarks.contest`.

Three provider processes whose permits and times change by phase, a gateway before them, wrk before
that: Alibaba's contest of 2019 (docs/contest-study.md) with real processes and sockets. A policy
has one queue in one gateway; HAProxy and nginx, from Debian's packages, stand before the same
providers as plain HTTP servers. Since services only sleep, the machine must not be what is
measured: everything is divided by ten (the short run), or time is stretched ten-fold (`--long`). A
run in which a process needs more than 70 % of a core is void, and says so.

The delay that is not service is measured first, for each way; from it follows the bound: what
somebody who knows everything could do over that way.
"""
