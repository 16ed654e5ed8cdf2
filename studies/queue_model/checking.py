"""Small random queues, to look for a configuration in which something gets lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from maitred.balancing import ALGORITHMS, SelectorSettings
from maitred.simulation.errors import SimulationError, Violation
from studies.queue_model.model import run_model
from studies.queue_model.settings import ModelSettings

if TYPE_CHECKING:
    from studies.queue_model.measures import Measures


def random_settings(seed: int) -> ModelSettings:
    """A small configuration, odd ones and ugly ones among them.

    But none in which the rules themselves can starve a task for ever, with nothing lost: without
    any local wait, or with a forward that is over before it has climbed the tree, the head of a
    backlog is always on its way and never where the polls are.
    """
    source = random.Random(f"settings {seed}")
    read_partitions = source.choice((1, 2, 3, 4, 7, 12))
    service_seconds = source.choice((0.0005, 0.01, 0.05, 0.5))
    pollers = source.choice((1, 2, 3, 5, 8, 20))
    utilization = source.choice((0.1, 0.5, 0.9, 1.3, 3.0))
    return ModelSettings(
        algorithm=source.choice(ALGORITHMS),
        selector=SelectorSettings(
            weight_threshold=source.choice((0, 3, 100)),
            weight_half_life_seconds=source.choice((0.1, 10.0)),
            round_robin_every=source.choice((1, 2, 10)),
        ),
        read_partitions=read_partitions,
        write_partitions=source.randint(1, read_partitions),
        pollers=pollers,
        worker_clients=source.choice((1, 2, 5)),
        producer_clients=source.choice((1, 3)),
        tasks=source.choice((1, 20, 100)),
        tasks_after_max=source.choice((0, 0, 50)),
        rate_per_second=utilization * pollers / service_seconds,
        initial_backlog=tuple(
            source.choice((0, 0, 1, 30)) for _ in range(source.randint(0, read_partitions))
        ),
        service_seconds=service_seconds,
        service=source.choice(("exponential", "constant")),
        network_seconds=source.choice((0.0, 0.0005, 0.004, 0.03)),
        store_write_seconds=source.choice((0.0, 0.005, 0.1)),
        forwarding=source.random() < 0.9,
        listen_at_home=source.random() < 0.6,
        degree=source.choice((1, 2, 3, 20)),
        local_wait_seconds=source.choice((0.001, 0.010, 0.1)),
        forward_polls_max=source.choice((1, 1, 3)),
        forward_tasks_max=source.choice((1, 1, 3)),
        forward_rate_per_second=source.choice((0.0, 0.5, 10.0, 1000.0)),
        add_budget_seconds=source.choice((0.0, 0.02, 0.2)),
        backlog_forward_seconds=source.choice((1.0, 2.0)),
        poll_timeout_seconds=source.choice((2.0, 60.0)),
        hint_backlog_max=source.choice((None, 5, 1_001)),
    )


def check_random_model(seed: int) -> Measures:
    """Run the configuration of a seed; raises `Violation` with the seed if an invariant breaks."""
    settings = random_settings(seed)
    try:
        return run_model(settings, seed)
    except SimulationError as error:
        raise Violation(f"Seed {seed}: {error} In {settings}.") from error
