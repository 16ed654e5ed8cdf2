"""`maitred admin backup | restore`: the SQLite files of a node, on the machine where they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from maitred.cli.output import Progress, json_option, print_json

if TYPE_CHECKING:
    from maitred.store.sqlite_backup import Backup

_data_option = click.option(
    "--data",
    metavar="DIR",
    default="maitred-data",
    envvar="MAITRED_DATA",
    show_default=True,
    help="The node's directory.",
)


@click.command(short_help="Copy the store of a node, and verify the copy.")
@click.argument("target", metavar="TARGET")
@_data_option
@json_option
def backup(target: str, data: str, *, as_json: bool) -> None:
    """Copy the store of a node into the new directory TARGET, and verify the copy.

    The node may run, under any load. Each database is copied as it was at one moment; those moments
    lie within milliseconds of one another. The signing key and the audit log are not copied. For a
    PostgreSQL store, use PostgreSQL's own tools.
    """
    from maitred.store.sqlite_backup import back_up

    made = back_up(Path(data).absolute(), Path(target).absolute(), Progress())
    _tell(made, Path(target).absolute(), "backed up to", as_json=as_json)


@click.command(short_help="Make a node's directory from a backup.")
@click.argument("source", metavar="BACKUP")
@_data_option
@click.option("--replace", is_flag=True, help="Move an existing store into a folder beside it.")
@json_option
def restore(source: str, data: str, *, replace: bool, as_json: bool) -> None:
    """Make a node's directory from BACKUP, which is verified first. The node must be stopped.

    Tasks that were added after the backup are lost, and those that ended since run again. No
    sequence number is used twice, and workers cannot finish tasks that they got before.
    """
    from maitred.node.identity import locked_directory
    from maitred.store.sqlite_backup import restore as restored

    with locked_directory(data) as directory:
        made = restored(Path(source).absolute(), directory, Progress(), replaces=replace)
    _tell(made, directory, "restored to", as_json=as_json)


def _tell(made: Backup, place: Path, what: str, *, as_json: bool) -> None:
    from maitred.store.sqlite_recovery import format_moment

    counts = {
        table: made.total(table) for table in ("tasks", "dead", "results", "damaged", "partitions")
    }
    if as_json:
        databases = sum(bool(file.identity) for file in made.files.values())
        told = {"directory": str(place), "taken_at": made.taken_at, "databases": databases}
        print_json(told | counts)
        return
    click.echo(
        f"{counts['tasks']:,} tasks, {counts['dead']:,} dead letters and {counts['results']:,} "
        f"results of {format_moment(made.taken_at)} {what} {place}, and verified."
    )
