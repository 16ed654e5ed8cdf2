"""The shop of examples/troubleshooting.py on a fresh node: who looks at it knows nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.running import FORKS
from tests.node.nodes import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DEAD = 8
"""Payments in Swiss francs."""


@dataclass
class TroubledShop:
    """A node with the tasks of a morning, and workers that serve five of the six queues."""

    node: RunningNode
    rates: Path
    processes: ExitStack

    @property
    def http(self) -> str:
        return str(self.node.ready["http"])

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "MAITRED_URL": self.node.url, "SHOP_RATES": str(self.rates)}

    def work(self, slots: int, *queues: str) -> None:
        """Start a worker for these queues."""
        options = [part for queue in queues for part in ("--queue", queue)]
        process = FORKS.start(
            *("worker", "troubleshooting:app", "--slots", str(slots), "--limit", "slots"),
            *options,
            environment=self.environment,
            directory=EXAMPLES,
        )

        def end() -> None:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

        self.processes.callback(end)

    def mend_payments(self) -> None:
        """What the developers do when they are told of the error."""
        self.rates.write_text('{"EUR": 1.0, "CHF": 0.93}')


@contextmanager
def troubled_shop(directory: Path) -> Iterator[TroubledShop]:
    rates = directory / "rates.json"
    rates.write_text('{"EUR": 1.0}')
    with running_node(shards=1, gateway=True) as node, ExitStack() as processes:
        shop = TroubledShop(node, rates, processes)
        shop.work(8, "orders", "mails", "stock", "payments")
        shop.work(1, "reports")
        program = "import asyncio, troubleshooting; asyncio.run(troubleshooting.sell())"
        subprocess.run(
            [sys.executable, "-c", program], cwd=EXAMPLES, env=shop.environment, check=True
        )
        yield shop


def by_queue(problems: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - JSON
    """The problems of a list in JSON; a queue has one at most here."""
    found = {one["queue"]: one for one in problems}
    assert len(found) == len(problems), json.dumps(problems)
    return found
