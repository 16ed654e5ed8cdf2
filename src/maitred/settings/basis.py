"""What settings are made of: their types, and what all groups have in common."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta, Struct

PORT = 4747
"""The default port of a node, for the node and for its clients."""

HTTP_PORT = 4780
"""The same for the HTTP API of a gateway."""

MONITOR_PORT = 4781
"""The same for the monitoring port of a node."""

# The upper ends say "this is a slip", not "this is wise": they keep a value with too many zeros, or
# an infinite one, out of timers and counters that could not hold it.
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]
Wait = Annotated[float, Meta(ge=0, le=365 * 86_400)]
Bytes = Annotated[int, Meta(ge=0, le=2**50)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(min_length=1)]
Location = Annotated[str, Meta(min_length=1, extra={"location": True})]
"""A file or directory. A relative one in a configuration file starts at that file's directory."""
Hidden = Annotated[str, Meta(min_length=1, extra={"hidden": True})]
"""Never shown: not in an error, not by `maitred config show`."""
Origin = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^/?#\s]+$",
        extra={"words": "http:// or https:// and a host, without a path"},
    ),
]
"""A scheme, a host and maybe a port, as browsers write them; no path."""
ClusterName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        extra={"words": "1 to 63 of a-z, 0-9 and -, of which - is not the first"},
    ),
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^?#\s]+$",
        extra={"words": "an address that begins with http:// or https://"},
    ),
]
Permission = Literal["produce", "work", "query", "admin", "observe", "read", "operate", "reveal"]
"""`read`: see queues, tasks, queries and workers, without private data. `operate`: change them;
includes `read`. `reveal`: see private data, which are arguments, results, messages of errors,
tracebacks and the texts of queries. `observe`: collect metrics. `admin` includes all others."""

ADVANCED: Final = "advanced"
_Setting = TypeVar("_Setting")
Advanced = Annotated[_Setting, ADVANCED]
"""A setting, or a group of them, that a node in production hardly ever needs to change: it is
documented in docs/settings-advanced.md, not in docs/settings.md."""

FIXED: Final = "fixed"
Fixed = Annotated[_Setting, FIXED]
"""A value that only maitred's own tests, studies and simulations vary, because no operator could
choose it better: it is no setting, so no file, variable or option can set it."""


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings: immutable, and without unknown ones."""
