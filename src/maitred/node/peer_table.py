"""All links of a shard to other shards, by owner number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maitred.node.peers import Peer, PeerShard
from maitred.node.remote_peer import RemotePeer

if TYPE_CHECKING:
    from maitred.logs import Logger
    from maitred.node.dispatched import Dispatched
    from maitred.node.owners import Owners
    from maitred.node.remote_peer import ClusterCredentials
    from maitred.node.shard_place import ShardPlace
    from maitred.protocol.messages import AnyRequest


class LinkedShard(PeerShard, Protocol):
    """The shard that has the links."""

    @property
    def place(self) -> ShardPlace:
        """The shard's place in the node."""

    @property
    def log(self) -> Logger:
        """Takes warnings and failures."""

    def dispatch(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        """Send a request to the shard that owns it by the present view, or serve it here."""


class Peers:
    """The other shards of this node, and those of other nodes that this shard has to reach."""

    def __init__(
        self, shard: LinkedShard, owners: Owners, credentials: ClusterCredentials | None
    ) -> None:
        """`credentials` are None without a cluster."""
        self._shard = shard
        self._owners = owners
        self._credentials = credentials
        place = shard.place
        self.known = {
            number: Peer(shard, number, number, path)
            for number, path in enumerate(place.peer_paths)
            if number != place.number
        }
        """The shards that were needed so far, by owner number."""

    def forward(self, work: Dispatched, message: AnyRequest, deadline: float) -> None:
        """Forward a request to the shard with the owner number that it names."""
        peer = self.known.get(work.owner) or self._found(work.owner)
        if peer is None:
            work.unreachable()
        else:
            peer.forward(work, message, deadline)

    def _found(self, owner: int) -> Peer | None:
        """Return a new peer for a shard of another node; None if the view does not have it."""
        member = self._owners.member(owner)
        number = self._owners.owner(owner).shard
        if member is None or self._credentials is None or owner < self._shard.place.shards:
            return None
        peer = self.known[owner] = RemotePeer(
            self._shard,
            owner,
            number,
            member=member,
            credentials=self._credentials,
            log=self._shard.log,
        )
        return peer

    def view_adopted(self) -> None:
        """Cut the links to members that are not in the view any more, and place the requests again
        that wait for links."""
        waiting = [one for peer in self.known.values() for one in peer.take_waiting()]
        gone = [
            owner
            for owner, peer in self.known.items()
            if isinstance(peer, RemotePeer) and self._owners.member(owner) is None
        ]
        for owner in gone:
            peer = self.known.pop(owner)
            if isinstance(peer, RemotePeer):
                peer.cut()
        for one in waiting:
            self._shard.dispatch(one.work, one.message, one.deadline)

    def statistics(self) -> dict[str, int]:
        """Return the number of links to shards of other nodes."""
        remote = [peer for peer in self.known.values() if isinstance(peer, RemotePeer)]
        return {"remote": len(remote), "connected": sum(peer.connected for peer in remote)}

    def look(self, now: float) -> None:
        """Probe silent links, and end requests that waited too long; called about once a second."""
        for peer in list(self.known.values()):
            peer.look(now)

    def close(self) -> None:
        """Close all links."""
        for peer in self.known.values():
            peer.close()
