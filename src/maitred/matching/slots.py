"""Free slots on offer, the requests of gateways for them, and the slots that are allocated.

These values refer to each other: an allocated slot names its offer and its request, and both list
their allocated slots; an offer that was drawn from a shared one names it, and the shared one lists
the offers drawn. `offers.py`, `slot_requests.py` and `shared_supplies.py` keep them in order.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field

from maitred.matching.attempt_proofs import holder_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitred.matching.records import PartitionKey
    from maitred.matching.task import QueueTask, Token

SetKey = tuple[bytes, str, int]
"""The worker's session and user as proofs name them, the namespace, and the number of the set."""


class WaitingOffer(Struct, eq=False):
    """Free slots of one worker, which are answered together.

    The garbage collector tracks offers: the deferred reply in `token` refers back to the offer.
    """

    token: Token
    session: bytes
    worker: str
    slots: int
    since: float
    hops: int = 0
    given: list[QueueTask] = field(default_factory=list)
    away: bool = False
    """Whether the offer also waits at the parent."""
    is_open: bool = True
    address: str = ""
    """Where gateways reach the worker; empty: it serves no queries."""
    reserved: list[AllocatedSlot] = field(default_factory=list)
    user: str = ""
    """The user as whom the worker connected; empty if the node has no users."""
    holder: bytes = b""
    """The session and the user, as proofs name them."""
    shared: SharedOffer | None = None
    """The shared offer from which its slots were drawn, if other queues draw from it, too. Such an
    offer has no free slots of its own and is answered at the end of the turn."""

    def __post_init__(self) -> None:
        if not self.holder:
            self.holder = holder_of(self.session, self.user)

    @property
    def untouched(self) -> bool:
        """Whether the offer was given nothing yet."""
        return not self.given and not self.reserved


class AllocatedSlot(Struct, eq=False):
    """A reservation: one slot of an offer for one query. The gateway and the worker are told of it
    at the end of the turn."""

    token: bytes
    """The secret that the gateway shows and the worker knows."""
    offer: WaitingOffer
    request: SlotRequest
    proof: bytes = b""
    """Proves to the next owner that this partition made the reservation; empty if the reservation
    takes no permit."""


class SlotRequest(Struct, eq=False):
    """A gateway's request for slots."""

    token: Token
    session: bytes
    """The random session by which partitions and workers know the gateway."""
    user: str
    slots: int
    """Slots that it still wants."""
    since: float
    """When its oldest query began to wait."""
    until: float
    """When the gateway stops waiting."""
    priority: int = 2
    hops: int = 0
    given: list[AllocatedSlot] = field(default_factory=list)
    away: bool = False
    """Whether it waits at the parent instead of here."""
    is_open: bool = True
    do_not_queue: bool = False
    """Whether the root refuses it if no slot is free."""
    permits: list[bytes] = field(default_factory=list)
    """The permits of its queries, one each; empty if the queries are not counted."""


class SharedOffer:
    """An offer of slots of one worker to all partitions of a set; it is answered once."""

    __slots__ = ("gifts", "is_open", "left", "parts", "since", "supply", "token", "until")

    def __init__(
        self, supply: SharedSupply, token: Token, slots: int, since: float, until: float
    ) -> None:
        self.supply = supply
        self.token = token
        self.left = slots
        """Slots that no partition has drawn."""
        self.since = since
        self.until = until
        """When the offer is answered even if there is nothing for it."""
        self.parts: dict[PartitionKey, WaitingOffer] = {}
        """Offers that partitions have drawn in this turn of the loop and not answered yet."""
        self.gifts: list[object] = []
        """Answers of partitions, which the driver collects into one."""
        self.is_open = True


class SharedSupply:
    """A worker's set of partitions on this shard, and its offers for them."""

    __slots__ = (
        "address",
        "free",
        "holder",
        "key",
        "members",
        "offers",
        "refused",
        "session",
        "used_at",
        "user",
        "versions",
        "worker",
    )

    def __init__(
        self,
        session: bytes,
        user: str,
        namespace: str,
        number: int,
        members: Mapping[PartitionKey, int],
        versions: Sequence[int] = (),
    ) -> None:
        self.session = session
        self.user = user
        self.holder = holder_of(session, user)
        self.key: SetKey = (self.holder, namespace, number)
        self.members = OrderedDict(members)
        """The partitions, and the position of each in the worker's list; the one that was served
        last is the last."""
        self.versions = list(versions)
        """Versions of the partition counts that the worker knows, in the order of its list."""
        self.worker = ""
        """The worker's name, for people to read."""
        self.address = ""
        """The worker's address for gateways; empty if gateways cannot reach the worker."""
        self.offers: dict[SharedOffer, None] = {}
        """The open offers, the oldest first."""
        self.free = 0
        """Slots of all open offers that no partition has drawn."""
        self.refused: list[tuple[int, bytes]] = []
        """Partitions that could not be loaded and why, until the worker is told."""
        self.used_at = -inf
