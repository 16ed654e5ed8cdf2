"""The study: its shape, its sentences, its picture, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maitred.balancing import ALGORITHMS
from maitred.errors import UnknownAlgorithm
from maitred.simulation.selection import (
    SCENARIOS,
    InvalidModelSetting,
    SelectionSettings,
    SelectionStudy,
    draw,
    selection_study,
)
from maitred.simulation.selection import study as study_module

if TYPE_CHECKING:
    from pathlib import Path


def silent(_done: int, _total: int, _what: str) -> None:
    pass


@pytest.fixture(scope="module")
def study() -> SelectionStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "SKEWS", (10, 200))
        return selection_study(SelectionSettings(tasks=120, seeds=2, sweep_seeds=1), silent)


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


def test_the_sweep_has_a_row_for_everything(study: SelectionStudy) -> None:
    rows = study.sweep_rows()
    # Round robin and four thresholds for each backlog, four without one, three half-lives; two
    # algorithms at three forward rates; two in three modes with 1, 2, 4 and 8 clients.
    assert len(rows) == 2 * 5 + 4 + 3 + 2 * 3 + 2 * 3 * 4


def test_it_is_json(study: SelectionStudy) -> None:
    text = json.dumps(study.as_json(), allow_nan=False)
    assert set(json.loads(text)) == {"settings", "models", "results", "sweep", "findings"}


def test_findings_are_sentences_from_the_numbers(study: SelectionStudy) -> None:
    findings = study.findings()
    assert len(findings) == 10
    assert all(sentence.endswith(".") for sentence in findings)
    weighted = study.cell("backlog", "weighted", "on")
    assert weighted is not None
    assert f"{weighted.mean('mean_ms') / 1e3:.1f} s on average" in findings[3]


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


@pytest.mark.parametrize("forwarding", ["on", "off"])
def test_any_part_can_be_studied_alone(
    forwarding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(study_module, "SKEWS", (10,))
    for scenario in SCENARIOS:
        settings = SelectionSettings(
            scenarios=(scenario,),
            algorithms=("weighted",),
            forwarding=forwarding,
            partitions=1,
            pollers=2,
            tasks=10,
            seeds=1,
            sweep_seeds=1,
        )
        study = selection_study(settings, silent)
        json.dumps(study.as_json(), allow_nan=False)
        assert study.findings() is not None
        draw(study, tmp_path / f"{scenario}.svg")


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


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_picture_is_drawn(study: SelectionStudy, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"selection{suffix}"
    draw(study, path)
    first = path.read_bytes()
    assert len(first) > 10_000
    draw(study, path)
    assert path.read_bytes() == first
