"""`maitred admin dashboards`: the Grafana dashboard and the Prometheus alerts of this release."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from maitred.cli.groups import HintingGroup
from maitred.cli.output import CannotWrite, json_option, print_json


@click.group(cls=HintingGroup)
def dashboards() -> None:
    """A dashboard for Grafana and alert rules for Prometheus."""


@dashboards.command()
@click.argument("directory", metavar="DIR")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def export(directory: str, *, force: bool, as_json: bool) -> None:
    """Write both files into a directory, which is made if it does not exist.

    maitred-dashboard.json is for "Import" of Grafana, or its provisioning; maitred.rules.yml for
    `rule_files` of Prometheus. Both belong to this release of maitred.
    """
    target = Path(directory)
    written = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for shipped in sorted(files("maitred.monitor").joinpath("files").iterdir(), key=str):
            path = target / shipped.name
            with path.open("wb" if force else "xb") as file:
                file.write(shipped.read_bytes())
            written.append(str(path))
    except FileExistsError as problem:
        raise CannotWrite(
            f"{problem.filename} exists.", remedy="Name another directory, or give --force."
        ) from None
    except OSError as problem:
        raise CannotWrite(
            f"{directory} cannot be written: {problem.strerror}.",
            remedy="Name a directory in which this user may write.",
        ) from None
    if as_json:
        print_json({"files": written})
    else:
        for name in written:
            click.echo(name)
