"""The imaginary node of these tests answers in the classes of the API."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec import ValidationError

from maitred.gateway.admin.answers import ActedTasks, UnreachablePart
from maitred.gateway.http.openapi import ANSWERS
from tests.console.shapes import answer_of, shaped
from tests.console.world import STATES, World

QUEUE = ("bank", "mail")

VIEWS: dict[str, tuple[Any, ...]] = {
    "list_queues": (),
    "list_problems": (),
    "show_series": (),
    "list_workers": (),
    "list_nodes": (),
    "show_nodes_series": (),
    "show_ring": (),
    "show_worker_series": (f"{2_654_435_761:032x}",),
    "list_queries": ("bank",),
    "describe_queue": QUEUE,
    "list_tasks": QUEUE,
    "list_dead_groups": QUEUE,
    "list_handlers": QUEUE,
}
"""The views, with the values in their paths."""

CHANGES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "act_on_tasks": (QUEUE, {"action": "drop", "ids": ["0/7294967296"], "reason": ""}),
    "pause_queue": (QUEUE, {"reason": ""}),
    "resume_queue": (QUEUE, {"reason": ""}),
    "set_queue": (QUEUE, {}),
    "resize_queue": (QUEUE, {"read": 2, "write": 1, "force": False}),
    "purge_queue": (QUEUE, {}),
    "delete_queue": (QUEUE, None),
    "worker_offline": ((*QUEUE, "worker-0000"), {}),
    "worker_online": ((*QUEUE, "worker-0000"), {}),
    "add_task": (QUEUE, {}),
    "cancel_task": ((*QUEUE, 0, 7_294_967_296), None),
    "cancel_query": (("bank", 9_000), None),
}


@pytest.mark.parametrize("poisoned", [False, True])
def test_the_answers_of_the_imaginary_node_are_those_of_the_api(poisoned: bool) -> None:
    world = World(time.time(), queues=100, workers=50, poisoned=poisoned)
    for handler, values in VIEWS.items():
        answer_of(handler, world.view(handler, {}, values))
    for reveal in ("false", "true"):
        for number, state in enumerate(STATES):
            given = {"state": state, "reveal": reveal}
            answer_of("list_tasks", world.view("list_tasks", given, QUEUE))
            task = (*QUEUE, 0, 4_294_967_296 + number * 1_000_000_000)
            answer_of("task_history", world.view("task_history", given, task))
    for handler, (values, body) in CHANGES.items():
        answer_of(handler, world.change("POST", handler, values, body))
    everything = {"action": "drop", "filter": {}, "dry_run": True}
    answer_of("act_on_tasks", world.change("POST", "act_on_tasks", QUEUE, everything))


def test_each_answer_that_the_console_can_get_is_tried() -> None:
    others = {"query", "task_result", "me", "queue_scaling", "health", "ready", "document"}
    assert {*VIEWS, "task_history", *CHANGES} == set(ANSWERS) - others


def test_another_shape_is_refused() -> None:
    answer = {"done": 1, "left": {}, "added": {}, "matched": 1, "cursor": None, "unreachable": []}
    assert shaped(answer, ActedTasks) == ActedTasks(1, {}, {}, 1, None, [])
    with pytest.raises(ValidationError, match="missing required field `cursor`"):
        shaped({name: value for name, value in answer.items() if name != "cursor"}, ActedTasks)
    with pytest.raises(ValidationError, match="Expected `int`, got `str`"):
        shaped(answer | {"done": "1"}, ActedTasks)
    with pytest.raises(AssertionError, match=r"the API has no ActedTasks\.more"):
        shaped(answer | {"more": False}, ActedTasks)
    error = {"code": "", "message": "", "remedy": None, "outcome": "", "hint": ""}
    with pytest.raises(AssertionError, match=r"no ActedTasks\.unreachable\[\]\.error\.hint"):
        shaped(answer | {"unreachable": [{"error": error}]}, ActedTasks)
    assert shaped({"error": {**error, "hint": ""}}, dict[str, Any])["error"]
    del error["hint"]
    assert shaped({"error": error, "shard": 3}, UnreachablePart).shard == 3
