"""What all tests share."""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from itertools import chain, islice
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes a slow example, not a wrong one; pytest-timeout bounds each test as a whole.
# On one's own machine every run tries new examples. In CI all runs try the same ones: what is new
# there should be the change, not the luck.
# Half of what hypothesis would try: there are hundreds of properties, and five minutes for all.
settings.register_profile("maitred", deadline=None, max_examples=40, derandomize="CI" in os.environ)
settings.load_profile("maitred")

# Hundreds of tests start processes of ours. Where the environment forbids to keep what was compiled
# (images for containers often do), each would compile all of it again, which takes longer than most
# tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Modules and tests, which a collection makes, stay to the end. `pytest_collection_finish` enables
# the garbage collector again.
gc.disable()

THRESHOLD = (10_000, 20, 20)
"""When the garbage collector looks for cycles: Python's 700 allocations cost the tests 8 % more CPU
time. Programs that tests start keep Python's."""

ROOT = Path(__file__).parent.parent

LONG = {
    "tests/cli/test_main.py": 33,
    "tests/cli/test_simulate.py": 26,
    "tests/cli/test_simulate_capacity.py": 13,
    "tests/cli/test_up.py": 22,
    "tests/cli/test_up_example.py": 21,
    "tests/client/test_shapes.py": 15,
    "tests/cluster/test_backup.py": 10,
    "tests/cluster/test_clocks.py": 7,
    "tests/cluster/test_forming.py": 8,
    "tests/cluster/test_lost_nodes.py": 26,
    "tests/cluster/test_paused_owner.py": 7,
    "tests/cluster/test_upgrades.py": 20,
    "tests/console/test_actions.py": 30,
    "tests/console/test_console.py": 59,
    "tests/console/test_real_node.py": 8,
    "tests/dispatch/test_slot_line.py": 8,
    "tests/gateway/test_processes.py": 99,
    "tests/matching/test_controls.py": 12,
    "tests/matching/test_model.py": 15,
    "tests/monitor/test_alerts.py": 130,
    "tests/monitor/test_processes.py": 22,
    "tests/monitor/test_scaling_signal.py": 51,
    "tests/monitor/test_ten_thousand_queues.py": 24,
    "tests/node/test_bad_input.py": 15,
    "tests/node/test_controls.py": 41,
    "tests/node/test_signatures.py": 19,
    "tests/node/test_supervisor.py": 25,
    "tests/protocol/test_frames.py": 14,
    "tests/protocol/test_messages.py": 22,
    "tests/protocol/test_notation.py": 24,
    "tests/queries_real/test_asking.py": 20,
    "tests/queries_real/test_disconnects.py": 70,
    "tests/queries_real/test_limits.py": 15,
    "tests/queries_real/test_node_away.py": 8,
    "tests/queries_real/test_policies.py": 21,
    "tests/queries_real/test_under_way.py": 22,
    "tests/simulation/test_cluster.py": 95,
    "tests/simulation/test_loop.py": 43,
    "tests/simulation/test_queries.py": 13,
    "tests/simulation/test_soak.py": 40,
    "tests/simulation/test_tasks.py": 48,
    "tests/store/test_backup.py": 43,
    "tests/store/test_manifest.py": 23,
    "tests/store/test_postgres_traps.py": 33,
    "tests/tasks/test_backlog.py": 16,
    "tests/tasks/test_killed.py": 26,
    "tests/tasks/test_scaling.py": 17,
    "tests/tasks/test_shard_counts.py": 12,
    "tests/tasks/test_store_outages.py": 29,
    "tests/tasks/test_workers.py": 20,
    "tests/test_against.py": 25,
    "tests/test_documents.py": 104,
    "tests/test_how_to_pages.py": 9,
    "tests/test_import_cycles.py": 16,
    "tests/test_inspecting_guide.py": 30,
    "tests/test_layers.py": 19,
    "tests/worker/test_real_log.py": 12,
}
"""Seconds that files with long tests took, six at a time on two busy cores. They decide the order
alone.
"""


def pytest_collection(session: pytest.Session) -> None:
    """Import the test modules, each process of a whole run in an order of its own.

    pytest keeps what it compiles of a module, and compiling takes four times as long as everything
    else that it does with it. If all processes began with the same module, all would compile each
    of them at the same time; this way each compiles its share of a new clone and reads the others'.
    """
    config = session.config
    if config.args_source is not config.ArgsSource.TESTPATHS or not hasattr(config, "workerinput"):
        return
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    number = int(config.workerinput["workerid"].removeprefix("gw"))
    first = len(files) * number // config.workerinput["workercount"]
    for file in files[first:] + files[:first]:
        # The collection that follows reports a module that cannot be imported.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each process begin with its share of the long tests.

    At first each gets as many tests as the others, in the order of `items`; later, one that has
    none left takes the last half of what another one has. Whatever is long has to stand in front: a
    long test that begins last keeps one core busy while the others idle.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    portions: list[list[pytest.Item]] = [[] for _ in range(processes)]
    seconds = [0] * processes
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for file in sorted(LONG.keys() & files.keys(), key=lambda file: (-LONG[file], file)):
        least = seconds.index(min(seconds))
        seconds[least] += LONG[file]
        portions[least] += files.pop(file)
    others = chain.from_iterable(files.values())
    for portion in portions:
        portion.extend(islice(others, max(0, len(items) // processes - len(portion))))
    items[:] = chain(*portions, others)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the thousands of tests, which stay to the end.

    It went through all of them for each full collection, for a second or more in which the loop of
    a test stood still.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLD)
