"""A node that was paused for longer than its lease, and that no other node has declared dead."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from maitred.app.app import App
from maitred.errors import NotOwner
from maitred.protocol.frames import CUSTOM_PAYLOAD, HEADER, HEADER_BYTES, REQUEST, Opcode
from maitred.protocol.frames import encode_frame as frame
from maitred.protocol.messages import decode_answer, encode, without_home
from maitred.protocol.refusals import decode_error
from maitred.protocol.tasks import Offer, Offered
from tests.cluster.ledger import NAMESPACE
from tests.cluster.rig import WAIT_SECONDS, Rig
from tests.cluster.shop import work
from tests.cluster.test_lost_nodes import logs
from tests.node.nodes import wait_until
from tests.node.raw import startup

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

QUEUES = 24
"""So many that each of two nodes owns some."""
LEASE_SECONDS = 3.0
SETTINGS = """
[cluster]
beat_seconds = 0.5

[queues."*"]
partitions = 1
"""
SESSION = b"a worker's own.."


def test_a_node_that_was_paused_beyond_its_lease_hands_out_nothing_again(
    tmp_path: Path, store: str
) -> None:
    with Rig(tmp_path, store, queues=QUEUES, node_settings=SETTINGS) as rig:
        # The one goes by a short lease, and the other one would wait for an hour.
        rig.start_nodes(1, "--set", f"cluster.lease_seconds={LEASE_SECONDS}")
        rig.start_nodes(1, "--set", "cluster.lease_seconds=3600")
        paused, other = rig.nodes
        asyncio.run(add_one_to_each_queue(rig))
        queues = [f"q{number}" for number in range(QUEUES)]
        queue = next(one for one in queues if owner(rig, one) == paused.ready["node"])
        before = rig.members()[paused.address]["id"]

        with socket.create_connection((paused.host.address, paused.port), WAIT_SECONDS) as link:
            stream = link.makefile("rb")
            link.sendall(startup())
            assert answer_in(stream)[0] == Opcode.READY
            paused.freeze()
            began = time.monotonic()
            # The kernel keeps the offer: it is the first thing that the node reads afterwards.
            offer = Offer(NAMESPACE, queue, 1, 0, 600_000, 1, SESSION, "late", 8)
            link.sendall(frame(REQUEST, 0, 1, Opcode.OFFER, encode(offer)))

            # An operator takes the node out of the ring; it is not dead, and does not know.
            rig.admin("node", "drain", paused.address, "--no-wait", node=other)
            rig.start_worker(url=other.url, wait=False)
            wait_until(lambda: not rig.ledger.missing(), "all tasks have run", WAIT_SECONDS)
            wait_until(lambda: time.monotonic() > began + LEASE_SECONDS, "the lease is over")
            paused.thaw()
            opcode, body = answer_in(stream)

        if opcode == Opcode.ERROR:
            assert isinstance(decode_error(body), NotOwner), decode_error(body)
        else:
            offered = decode_answer(Opcode.OFFER, body)
            assert isinstance(offered, Offered)
            assert offered.tasks == [], logs(rig)
        member = rig.members()[paused.address]
        assert (member["id"], member["state"]) == (before, "draining")
        verdict = rig.ledger.verdict()
        assert not verdict.repetitions, f"{verdict.repetitions}\n{logs(rig)}"


async def add_one_to_each_queue(rig: Rig) -> None:
    """Store a task in each queue; no worker waits for it."""
    async with App(NAMESPACE, node=rig.url) as app:
        for number in range(QUEUES):
            task = await app.handler(f"q{number}")(work).enqueue(number)
            rig.book.note("acked", n=number, q=f"q{number}", task=task.id, sent=time.monotonic())


def owner(rig: Rig, queue: str) -> str:
    """The node that has the only partition of the queue."""
    (partition,) = rig.admin("queue", "describe", f"{NAMESPACE}/{queue}")["partitions"]
    return str(partition["node"])


def answer_in(stream: IO[bytes]) -> tuple[int, bytes]:
    """The opcode and the body of the next frame."""
    _, flags, _, opcode, length = HEADER.unpack(stream.read(HEADER_BYTES))
    body = stream.read(length)
    return opcode, without_home(body)[1] if flags & CUSTOM_PAYLOAD else body
