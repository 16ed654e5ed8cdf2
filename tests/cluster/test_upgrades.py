"""Two neighbouring versions in one cluster: the previous program beside this one, as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maitred.protocol.description import VERSIONS
from tests.cluster.programs import PREVIOUS_VERSIONS, altered_program, previous_program
from tests.cluster.rig import ROOT, Rig, RigNode
from tests.cluster.shapes import misread, shapes
from tests.cluster.test_lost_nodes import ALL_KINDS, DURATIONS, finished, logs, served_everywhere
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.programs import PreviousProgram

QUEUES = 4

SETTINGS = """
[cluster]
forward_seconds = 0.5

[queues."*"]
partitions = 2
"""
"""Two partitions a queue, so that tasks and slots meet across nodes."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> PreviousProgram:
    return previous_program(tmp_path_factory.mktemp("previous"))


def protocols(rig: Rig) -> list[int]:
    """What each node says that all speak; today's command asks nodes of both versions."""
    return [rig.admin("cluster", node=node)["protocol"] for node in rig.nodes]


def test_a_cluster_is_upgraded_node_by_node(
    tmp_path: Path, store: str, previous: PreviousProgram
) -> None:
    older = previous.environment
    with Rig(tmp_path, store, queues=QUEUES, node_settings=SETTINGS) as rig:
        rig.start_nodes(2, program=older)
        assert protocols(rig) == [PREVIOUS_VERSIONS[-1]] * 2
        rig.start_worker("--slots", "4", program=older)
        rig.start_worker("--slots", "4")
        producer = rig.start_producer(rate=50, kinds=ALL_KINDS, durations=DURATIONS)
        served_everywhere(rig)
        for spoken, node in zip((PREVIOUS_VERSIONS[-1], VERSIONS[-1]), rig.nodes, strict=True):
            assert node.drain() == 0, node.log
            node.start()
            rig.wait_for_members(2)
            # The first one has migrated the database, under the older one.
            served_everywhere(rig)
            assert protocols(rig) == [spoken] * 2
        # The upgrade is undone: an older node starts on the database as it is now.
        first = rig.nodes[0]
        assert first.drain() == 0, first.log
        first.start(program=older)
        rig.wait_for_members(2)
        served_everywhere(rig)
        assert protocols(rig) == [PREVIOUS_VERSIONS[-1]] * 2
        verdict = finished(rig, producer)
        failed = [str(entry) for entry in rig.ledger.failed]
        assert not failed, "\n".join([*failed, logs(rig)])
        assert not verdict.repetitions, "\n".join([*map(str, verdict.repetitions), logs(rig)])
        assert verdict.is_clean, verdict
    if previous.missing:
        pytest.skip(f"{previous.missing}: only today's code, with older versions, was run")


def test_both_programs_read_each_other_s_messages(previous: PreviousProgram) -> None:
    """Also those that the upgrade above does not send."""
    if previous.missing:
        pytest.skip(previous.missing)
    told = subprocess.run(
        [sys.executable, "-m", "tests.cluster.shapes"],
        cwd=ROOT,
        env={**os.environ, **previous.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    old, new = json.loads(told.stdout), json.loads(json.dumps(shapes()))
    assert len(old) > 50
    problems = {name: misread(old[name], new.get(name)) for name in old}
    assert not any(problems.values()), {name: one for name, one in problems.items() if one}


A_NUMBER = ["required", "IntType"]


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (["array", A_NUMBER, A_NUMBER], ""),
        (["array", A_NUMBER, A_NUMBER, ["optional", "StrType"]], ""),
        (["array", A_NUMBER, A_NUMBER, ["required", "StrType"]], "may not be left out"),
        (["array", A_NUMBER], "is gone"),
        (["array", ["required", "StrType"], A_NUMBER], "IntType became StrType"),
        (["array", ["optional", "IntType"], A_NUMBER], "became ['optional', 'IntType']"),
        (["map", {}], "became"),
        (None, "became None"),
    ],
)
def test_changes_that_the_other_program_would_misread(new: Any, problem: str) -> None:  # noqa: ANN401
    found = misread(["array", A_NUMBER, A_NUMBER], new)
    assert problem in found
    assert bool(found) == bool(problem)


def test_a_node_two_versions_away_is_refused(tmp_path: Path, store: str) -> None:
    newer = (VERSIONS[-1] + 1, VERSIONS[-1] + 2)
    with Rig(tmp_path, store) as rig:
        rig.start_nodes(1)
        node = RigNode(rig, 1)
        node.start(wait=False, program=altered_program(versions=newer))
        assert node.running.wait() == 1, node.log
        node.log.wait_for_end()
        said = " ".join(str(node.log).split())
        theirs, ours = (", ".join(map(str, spoken)) for spoken in (VERSIONS, newer))
        assert f"speaks the protocol versions {theirs}, and this node {ours}." in said
        assert rig.nodes[0].address in said
        assert "Upgrade in steps" in said
        assert "[cannot-start]" in said
        assert "Traceback" not in said
        wait_until(lambda: len(rig.members()) == 1, "it left nothing behind")
