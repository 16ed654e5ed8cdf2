"""Many workers of one slot each: `python -m benchmarks.queries.pool URL QUEUE...`, one a queue.

Each is `maitred worker`, in a process of its own; they are forked from one that has imported
everything, because two dozen interpreters would take their time to start.
"""

from __future__ import annotations

import os
import signal
import sys

import benchmarks.queries.peers.maitred
import maitred.client.client
import maitred.worker.process
import maitred.worker.worker
from benchmarks.queries.running import APP
from maitred.cli.main import run

IMPORTED = (benchmarks.queries.peers.maitred, maitred.client.client, maitred.worker)


def main() -> None:
    url, *queues = sys.argv[1:]
    children = []
    for queue in queues:
        child = os.fork()
        if child == 0:
            options = ["--slots", "1", "--queue", queue, "--url", url, "--log-level", "warning"]
            sys.argv = ["maitred", "worker", APP, *options]
            run()
            os._exit(0)
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
