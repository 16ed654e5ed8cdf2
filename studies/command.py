"""What the commands of the studies share: their options, and how results are written and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from maitred.cli.output import CannotWrite, Progress, print_json, print_table
from maitred.simulation.pictures import check_available

if TYPE_CHECKING:
    from collections.abc import Callable


class Study(Protocol):
    """What every study can say about itself."""

    def table(self) -> list[dict[str, object]]: ...
    def findings(self) -> list[str]: ...
    def as_json(self) -> dict[str, object]: ...


AnySettings = TypeVar("AnySettings")
AnyStudy = TypeVar("AnyStudy", bound=Study)
AnyCommand = TypeVar("AnyCommand", bound="Callable[..., Any]")


def study_options(command: AnyCommand) -> AnyCommand:
    """Add the options that every study takes: `quick`, `output`, `picture` and `as_json`."""
    for option in reversed(
        (
            click.option("--quick", is_flag=True, help="A few seconds: enough to see the shape."),
            click.option(
                "--output",
                type=click.Path(file_okay=False, path_type=Path),
                default=Path("results"),
                show_default=True,
                help="Folder for the JSON file and the picture.",
            ),
            click.option(
                "--picture",
                type=click.Choice(["svg", "png", "none"]),
                default="svg",
                show_default=True,
                help="Format of the picture.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
        )
    ):
        command = option(command)
    return command


def given(**options: object) -> dict[str, Any]:
    """The options that were given, by the names of the settings that they change."""
    return {name: value for name, value in options.items() if value is not None}


def conduct(
    name: str,
    settings: AnySettings,
    study_of: Callable[[AnySettings, Progress], AnyStudy],
    draw: Callable[[AnyStudy, Path], None],
    *,
    output: Path,
    picture: str,
    as_json: bool,
    show: Callable[[AnyStudy], None] | None = None,
) -> None:
    """Run a study with progress on standard error, write its files and print its results; `show`
    prints them for people, if the study has more than one table."""
    if picture != "none":
        check_available()
    study = study_of(settings, Progress())
    written = [output / f"{name}.json"]
    try:
        output.mkdir(parents=True, exist_ok=True)
        written[0].write_text(json.dumps(study.as_json(), indent=1) + "\n")
        if picture != "none":
            written.append(output / f"{name}.{picture}")
            draw(study, written[1])
    except OSError as problem:
        raise CannotWrite(
            f"Cannot write to {problem.filename or output}: {problem.strerror}.",
            remedy="Name another folder with --output.",
        ) from None
    if as_json:
        print_json(study.as_json())
    elif show is not None:
        show(study)
    else:
        print_table(study.table())
        click.echo()
        for sentence in study.findings():
            click.echo(f"- {sentence}")
    click.echo(f"\nWritten: {', '.join(map(str, written))}", err=True)
