"""A cluster with its network and its database, as the benchmarks use it."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.database import Database
from tests.cluster.network import DATABASE, Loopback, network, remove_leftovers
from tests.cluster.rig import Rig

from benchmarks.tasks.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.network import Network

SETTINGS = """
[queues."*"]
partitions = {partitions}
lease_seconds = 6
[restarts]
give_up_after = 1000
"""


@contextmanager
def cluster(
    nodes: int,
    *,
    queues: int,
    shards: int = 1,
    partitions: int = 1,
    loopback: bool = False,
    folder: Path | None = None,
) -> Iterator[Rig]:
    """Start so many nodes; everything ends with the block. The folder, with logs and the ledger, is
    removed unless it was given."""
    remove_leftovers()
    place: Network = Loopback() if loopback else network()
    temporary = tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True)
    try:
        port = 5432 if place.can_cut else free_port()
        with (
            Database(place.host(DATABASE), port) as database,
            Rig(
                folder or Path(temporary.name),
                database.store,
                place,
                shards=shards,
                queues=queues,
                node_settings=SETTINGS.format(partitions=partitions),
                worker_options=("--slots", "32"),
                nearby=database.nearby,
                afresh=True,
            ) as rig,
        ):
            rig.start_nodes(nodes)
            rig.start_watcher()
            yield rig
    finally:
        place.close()
        with suppress(OSError):
            temporary.cleanup()
