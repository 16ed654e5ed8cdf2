"""`maitred`: the commands, and how every one of them fails.

Commands are imported when they are called, not when the program starts: `maitred --help` and shell
completion must answer at once, however much the product grows.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from importlib import import_module

import click

from maitred import __version__
from maitred.cli.groups import HintingGroup
from maitred.errors import InvalidArgument, MaitredError, ShardsKeepDying, printable

# name -> where it is, and the line that `maitred --help` shows
COMMANDS = {
    "up": ("maitred.cli.up:up", "Start a node."),
    "worker": ("maitred.cli.worker:worker", "Run the handlers of an app."),
    "serve-http": (
        "maitred.cli.serve_http:serve_http",
        "Forward queries to an HTTP server.",
    ),
    "gateway": ("maitred.cli.gateway:gateway", "Serve the HTTP API of a node."),
    "status": ("maitred.cli.status:status", "Show the state and the load of every shard."),
    "ping": ("maitred.cli.ping:ping", "Send echoes to every shard and show how long they take."),
    "admin": (
        "maitred.cli.admin:admin",
        "Inspect and manage tasks, queues, queries and workers.",
    ),
    "route": ("maitred.cli.route:route", "Show where each partition of a queue lives."),
    "simulate": ("maitred.cli.simulate:simulate", "Plan capacity, or soak, in a simulated world."),
    "config": ("maitred.cli.config:config", "The settings of a node: list, check, show."),
    "hash-secret": ("maitred.cli.hash_secret:hash_secret", "Hash a secret for the settings."),
    "completion": ("maitred.cli.completion:completion", "Print a shell completion script."),
}

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_SHARDS_KEEP_DYING = 3
EXIT_INTERRUPTED = 130
"""The exit status that shells report for a program ended by Ctrl-C."""


class LazyGroup(HintingGroup):
    """A group that imports a command when it is first needed."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a wrong entry in the table above
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="maitred")
@click.pass_context
def cli(context: click.Context) -> None:
    """maitred seats every task and every query at a worker that is free."""
    # As no-color.org defines it; the logs check by themselves.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False


def run() -> None:
    """The entry point of the program `maitred`."""
    run_command(cli, "maitred")


def run_command(command: click.Command, name: str) -> None:
    """Run a command; an error becomes a sentence and an exit code, never a traceback."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a box character gets a question mark, not an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        command.main(prog_name=name, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except MaitredError as problem:
        click.echo(f"{name}: {printable(problem.sentence)} [{problem.code}]", err=True)
        if problem.remedy:
            click.echo(f"{'':{len(name)}}  {printable(problem.remedy)}", err=True)
        sys.exit(_exit_status(problem))
    except (click.Abort, KeyboardInterrupt):
        # The interrupted command may leave coroutines behind that are never awaited.
        warnings.simplefilter("ignore")
        click.echo(f"{name}: stopped.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except OSError as problem:
        # A full disk behind standard output, say. Python must not try to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"{name}: Cannot write the output: {problem.strerror}. [cannot-write]", err=True)
        sys.exit(EXIT_FAILED)


def _open_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed: otherwise the next
    file or socket would get their number, and the event loop refuses to close such a one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _exit_status(problem: MaitredError) -> int:
    """Tell bad input from a request that was right and failed here and now."""
    if isinstance(problem, InvalidArgument):
        return EXIT_BAD_INPUT
    return EXIT_SHARDS_KEEP_DYING if isinstance(problem, ShardsKeepDying) else EXIT_FAILED
