"""How many shards a node has if nobody says: as many as the cores that it may use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import maitred
from tests.cli.running import MAITRED
from tests.node.nodes import WAIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

ON_THESE_CORES = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(',')));"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
"""As `taskset` does."""


def usable() -> list[int]:
    """The cores that there are for us."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("NO AFFINITY ON THIS SYSTEM: a node on fewer cores was not tried")
    return sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [1, 2])
def test_a_node_has_a_shard_for_each_core_that_it_may_use(count: int, tmp_path: Path) -> None:
    cores = usable()
    if len(cores) < count:
        pytest.skip(f"ONLY {len(cores)} CORE HERE: a node on {count} was not tried")
    chosen = ",".join(map(str, cores[-count:]))
    command = [str(MAITRED), "up", "--json", "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, "-c", ON_THESE_CORES, chosen, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAITRED_")},
    ) as process:
        try:
            assert process.stdout
            ready = json.loads(process.stdout.readline())
            assert [shard["shard"] for shard in ready["shards"]] == list(range(count))
            with maitred.connect(ready["url"]) as client:
                client.covered()
                assert client.nodes()[0].shards == count
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
