"""The study: its shape, its sentences, its picture, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from studies.queue_model import InvalidModelSetting
from studies.queue_model.measures import Spread
from studies.selection import (
    SCENARIOS,
    SelectionSettings,
    SelectionStudy,
    draw,
    selection_study,
)
from studies.selection import study as study_module

from maitred.balancing import ALGORITHMS
from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

PICTURE = "studies.selection.picture"


def silent(_done: int, _total: int, _what: str) -> None:
    pass


@pytest.fixture(scope="module")
def study() -> SelectionStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "SKEWS", (10, 100))
        return selection_study(SelectionSettings(tasks=30, seeds=2, sweep_seeds=1), silent)


def test_there_is_a_row_for_everything(study: SelectionStudy) -> None:
    rows = study.rows()
    assert len(rows) == len(SCENARIOS) * len(ALGORITHMS) * 3
    assert len({frozenset(row) for row in rows}) == 1
    assert {(row["scenario"], row["algorithm"], row["forwarding"]) for row in rows} == {
        (scenario, name, mode)
        for scenario in SCENARIOS
        for name in ALGORITHMS
        for mode in ("off", "on", "home")
    }
    for row in rows:
        assert all(isinstance(value, str | int | float | None) for value in row.values())
        assert (row["erlang_mean_ms"] is None) == (row["scenario"] in ("backlog", "overload"))


def test_the_table_is_printable(study: SelectionStudy) -> None:
    table = study.table()
    assert len(table) == len(study.rows())
    assert sum(len(name) + 2 for name in table[0]) < 130
    for row in table:
        assert all(isinstance(value, str | int | float | None) for value in row.values())
        assert 0 <= float(str(row["stored %"])) <= 100
        assert float(str(row["p50 ms"])) <= float(str(row["p99 ms"]))


def test_the_sweep_has_a_row_for_everything(study: SelectionStudy) -> None:
    rows = study.sweep_rows()
    # Round robin and four thresholds for each backlog, four without one, three half-lives; two
    # algorithms at three forward rates; two in three modes with 1, 2, 4 and 8 clients.
    assert len(rows) == 2 * 5 + 4 + 3 + 2 * 3 + 2 * 3 * 4


def test_it_is_json(study: SelectionStudy) -> None:
    text = json.dumps(study.as_json(), allow_nan=False)
    assert set(json.loads(text)) == {"settings", "models", "results", "sweep", "findings"}


def test_findings_are_sentences_from_the_numbers(study: SelectionStudy) -> None:
    found = study.findings()
    assert len(found) == 10
    assert all(sentence.endswith(".") for sentence in found)
    weighted = study.cell("backlog", "weighted", "on")
    assert weighted is not None
    wait = weighted.mean("mean_ms")
    words = f"{wait / 1e3:.1f} s" if wait >= 1_000 else f"{wait:.0f} ms"
    assert f"a task waits {words} on average" in found[3]


def test_progress_counts_every_run() -> None:
    seen: list[tuple[int, int, str]] = []
    settings = SelectionSettings(
        scenarios=("stable",), algorithms=("random",), tasks=20, seeds=3, forwarding="off"
    )
    study = selection_study(settings, lambda *step: seen.append(step))
    assert seen == [(done, 3, "stable, random, off") for done in (1, 2, 3)]
    assert study.sweep == ()
    assert study.cell("stable", "random", "on") is None
    assert len(study.findings()) == 1


@pytest.mark.parametrize(
    ("forwarding", "modes"),
    [("both", ("off", "on", "home")), ("on", ("on", "home")), ("off", ("off",))],
)
def test_forwarding_can_be_chosen(forwarding: str, modes: tuple[str, ...]) -> None:
    assert SelectionSettings(forwarding=forwarding).modes == modes


def check_everything_can_be_shown(study: SelectionStudy, figures: list[Figure] | None) -> None:
    """With a picture, which takes most of the time, if there are figures to draw it to."""
    assert len(study.table()) == len(study.cells)
    json.dumps(study.as_json(), allow_nan=False)
    for sentence in study.findings():
        assert sentence.endswith(".")
        assert not re.search(r"with it\b|\bnan\b|\binf\b|  |, ,|,\.|;\.|None", sentence), sentence
    if figures is not None:
        draw(study, Path("drawn.svg"))
        (figure,) = figures
        assert figure.axes
        assert all(axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize("forwarding", ["on", "off"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_any_part_can_be_studied_alone(
    scenario: str,
    forwarding: str,
    monkeypatch: pytest.MonkeyPatch,
    sketched: Callable[[str], list[Figure]],
) -> None:
    monkeypatch.setattr(study_module, "SKEWS", (10,))
    settings = SelectionSettings(
        scenarios=(scenario,), forwarding=forwarding, tasks=10, seeds=2, sweep_seeds=1
    )
    study = selection_study(settings, silent)
    assert {cell.algorithm for cell in study.cells} == set(ALGORITHMS)
    swept = {"stable": {"clients"}, "backlog": {"threshold", "half-life"}}.get(scenario, set())
    assert {cell.setting for cell in study.sweep} - {"forward-rate"} == swept
    check_everything_can_be_shown(study, sketched(PICTURE) if forwarding == "on" else None)


@pytest.mark.parametrize(
    "odd",
    [
        *({"algorithms": (name,)} for name in ALGORITHMS),
        {"partitions": 1},
        {"pollers": 1},
        {"tasks": 1, "seeds": 1, "scenarios": ("backlog",), "pollers": 100},
        {"tasks": 3, "network_seconds": 0.0, "pollers": 30},
        {"tasks": 3, "network_seconds": 0.0, "pollers": 30, "partitions": 1, "seeds": 1},
        {"rate_per_second": 240.0, "scenarios": ("stable",), "forwarding": "on"},
        {"partitions": 30, "sweep": False, "forwarding": "off"},
        {"service_seconds": 1e-3, "scenarios": ("stable",), "forwarding": "off"},
        {"service_seconds": 1e3, "tasks": 3, "scenarios": ("overload",), "forwarding": "on"},
    ],
    ids=str,
)
def test_odd_settings_can_be_shown(
    odd: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    sketched: Callable[[str], list[Figure]],
) -> None:
    monkeypatch.setattr(study_module, "SKEWS", (2, 10))
    small: dict[str, object] = {
        "tasks": 5,
        "seeds": 2,
        "sweep_seeds": 1,
        "scenarios": ("stable", "backlog"),  # those that are swept
    }
    settings = SelectionSettings(**(small | odd))  # type: ignore[arg-type]
    # One algorithm alone is drawn like any other.
    drawn = odd.get("algorithms", ALGORITHMS[:1]) == ALGORITHMS[:1]
    check_everything_can_be_shown(
        selection_study(settings, silent), sketched(PICTURE) if drawn else None
    )


def findings(**changes: object) -> str:
    given: dict[str, object] = {"tasks": 60, "seeds": 2, "sweep": False}
    return "\n".join(
        selection_study(SelectionSettings(**(given | changes)), silent).findings()  # type: ignore[arg-type]
    )


def test_one_seed_proves_nothing() -> None:
    one = findings(scenarios=("backlog",), tasks=300, seeds=1, forwarding="off")
    assert "weighted is better than every other algorithm studied, though one seed can't" in one
    stable = findings(scenarios=("stable",), tasks=300, seeds=1, forwarding="off")
    assert "can't be told from chance" in stable
    assert "not the same waits" not in stable


def test_one_partition_leaves_nothing_to_choose() -> None:
    said = findings(partitions=1)
    assert "not better than every other" in said
    for word in ("Random and round robin", "unevenly", "the root", "The tree", "listening"):
        assert word not in said


def test_a_queue_over_its_capacity_is_not_called_stable() -> None:
    calm = findings(scenarios=("stable",), sweep=True, sweep_seeds=1)
    full = findings(scenarios=("stable",), sweep=True, sweep_seeds=1, rate_per_second=160.0)
    for words in ("When stable", "when stable", "a stable queue"):
        assert words in calm
        assert words not in full


def test_few_polls_are_not_called_even_or_uneven() -> None:
    few = findings(scenarios=("stable",), tasks=4, seeds=1)
    assert "there are too few polls to judge random" in few
    assert "unevenly" not in few
    assert "Random and round robin" not in few


def with_polls(study: SelectionStudy, *counts: int) -> SelectionStudy:
    """The same study, had its polls been spread like this."""
    cells = [
        replace(cell, runs=tuple(replace(run, polls=Spread.of(counts)) for run in cell.runs))
        for cell in study.cells
    ]
    return replace(study, cells=tuple(cells))


def test_uneven_polls_alone_make_a_sentence(study: SelectionStudy) -> None:
    found = with_polls(study, 500, 400, 400, 400).findings()
    assert found[0].startswith(
        "When stable, with the tree, polls are spread more unevenly than by chance under random "
        "(off 1/N by at most 4.41% of 3,400 polls), round-robin ("
    )
    assert "no sign" not in " ".join(found)


def test_even_polls_are_told_with_their_number(study: SelectionStudy) -> None:
    found = with_polls(study, 400, 401, 400, 399).findings()
    assert found[0].startswith(
        "When stable, with the tree, there is no sign that polls are spread unevenly under random "
        "(off 1/N by at most 0.06% of 3,200 polls), round-robin ("
    )
    assert "more unevenly" not in found[0]
    assert any(s.startswith("Random and round robin show no sign of unequal") for s in found)


def test_waiting_shares_sum_up_to_1_even_if_nobody_waited_in_a_run(study: SelectionStudy) -> None:
    cell = study.cells[0]
    first = replace(cell.runs[0], waiting=(0.0,) * len(cell.runs[0].waiting))
    assert sum(replace(cell, runs=(first, *cell.runs[1:])).waiting()) == pytest.approx(1.0)
    assert sum(replace(cell, runs=(first,)).waiting()) == 0.0


def test_numbers_given_overrule_the_scenario() -> None:
    settings = SelectionSettings(
        partitions=6, pollers=5, rate_per_second=33.0, service_seconds=0.1, tasks=50
    )
    model = settings.model("backlog", "weighted", "home")
    assert (model.read_partitions, model.write_partitions) == (6, 6)
    assert model.pollers == 5
    assert model.rate_per_second == 33.0
    assert model.initial_backlog == (0, 0, 0, 0, 0, 50)
    assert model.forwarding
    assert model.listen_at_home


def test_the_load_stays_when_pollers_are_given() -> None:
    model = SelectionSettings(pollers=16).model("stable", "random", "off")
    assert model.utilization == pytest.approx(0.7)
    assert not model.forwarding


@pytest.mark.parametrize(
    "bad",
    [
        {"scenarios": ("calm",)},
        {"algorithms": ("best",)},
        {"forwarding": "maybe"},
    ],
)
def test_unknown_names_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UnknownAlgorithm):
        SelectionSettings(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"scenarios": ()},
        {"algorithms": ()},
        {"partitions": 0},
        {"partitions": 10**6},
        {"pollers": -1},
        {"rate_per_second": 0.0},
        {"service_seconds": 0.0},
        {"network_seconds": -1.0},
        {"tasks": 0},
        {"worker_clients": 0},
        {"seeds": 0},
        {"sweep_seeds": 0},
        {"first_seed": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidModelSetting):
        SelectionSettings(**bad)  # type: ignore[arg-type]


def test_the_picture_is_drawn(
    study: SelectionStudy, sketched: Callable[[str], list[Figure]]
) -> None:
    check_everything_can_be_shown(study, sketched(PICTURE))
