"""The options of both `maitred worker` and `maitred serve-http`, and how both serve and end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from maitred.cli.address import run, token_file_option
from maitred.cli.process_exit import exit_statuses, forced, leave
from maitred.errors import InvalidArgument
from maitred.node.exits import BAD_INPUT, CANNOT_START, CUT_OFF, FINISHED
from maitred.settings import Log, Upstream, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maitred.app.app import App
    from maitred.app.handler import Handler

_Settings = TypeVar("_Settings", WorkerSettings, Log, Upstream)
_Command = TypeVar("_Command", bound="Callable[..., Any]")

NAME_LETTERS: Final = 200
"""Longest name of a worker that the protocol carries."""

MEANINGS: Final = (
    (str(FINISHED), "stopped; everything that ran was finished, and the node knows it"),
    (str(CANNOT_START), "could not start: the node refuses the login"),
    (str(BAD_INPUT), "bad input: an option, or an app that cannot be imported"),
    (str(CUT_OFF), "stopped, and some tasks were left behind; the node gives them to others"),
    ("130, 143", "forced by a second signal (SIGINT, SIGTERM)"),
)

EPILOG: Final = exit_statuses(MEANINGS)

NOWHERE: Final = "none"

_FLAGS: Final = {"host": "listen", "port": "listen_port"}
"""Settings whose option has another name."""


def node_option(default: str) -> Callable[[_Command], _Command]:
    """`--url`, with its default in words."""
    told = f"Which node.  [default: {default}]"
    return click.option("--url", "--node", "url", metavar="URL", help=told)


def worker_options(command: _Command) -> _Command:
    """The options for the listener, the name, the drain and the log of a worker, as `serve` takes
    them."""
    for decorate in reversed(
        (
            token_file_option(),
            click.option(
                "--listen",
                "host",
                metavar="HOST|none",
                help="Address for gateways; none: the node relays queries.  [default: 127.0.0.1]",
            ),
            click.option(
                "--listen-port",
                "port",
                metavar="PORT",
                help="Port of that address.  [default: a free one]",
            ),
            click.option(
                "--certificate",
                metavar="FILE",
                help="Certificate for gateways.  [default: one made at the start, if the node has "
                "TLS]",
            ),
            click.option(
                "--key",
                metavar="FILE",
                help="The certificate's key.  [default: in the same file]",
            ),
            click.option(
                "--public-without-tls",
                is_flag=True,
                flag_value="true",
                default=None,
                help="Listen on a public address without TLS: arguments and results are readable "
                "on the way.",
            ),
            click.option(
                "--monitor-host",
                metavar="HOST|none",
                help="Address of /health, /ready and /metrics; none: no pages.  "
                "[default: 127.0.0.1]",
            ),
            click.option(
                "--monitor-port",
                metavar="PORT",
                help="Port of that address.  [default: a free one, which the log tells]",
            ),
            click.option(
                "--monitor-open-metrics",
                is_flag=True,
                flag_value="true",
                default=None,
                help="Let other machines read /metrics, which names queues.",
            ),
            click.option(
                "--traces",
                is_flag=True,
                flag_value="true",
                default=None,
                help="Export spans by OTLP.",
            ),
            click.option(
                "--otlp-metrics",
                is_flag=True,
                flag_value="true",
                default=None,
                help="Export the metrics by OTLP, too.",
            ),
            click.option(
                "--otlp-endpoint",
                metavar="URL",
                help="The receiver.  [default: OpenTelemetry's, http://localhost:4317]",
            ),
            click.option("--name", metavar="NAME", help="For people to read.  [default: host:pid]"),
            click.option(
                "--drain-seconds", metavar="S", help="How long to finish work.  [default: 30]"
            ),
            click.option(
                "--log-format", metavar="FORMAT", help="auto, human or json.  [default: auto]"
            ),
            click.option("--log-level", metavar="LEVEL", help="debug, info, ...  [default: info]"),
        )
    ):
        command = decorate(command)
    return command


def serve(
    load: Callable[[], tuple[App, Sequence[Handler[Any, Any, Any]]]],
    *,
    url: str | None,
    token_file: str | None,
    name: str | None,
    log_format: str | None,
    log_level: str | None,
    traces: str | None,
    otlp_metrics: str | None,
    otlp_endpoint: str | None,
    **options: str | None,
) -> None:
    """Serve the handlers that `load` finds, as the options say, and end the process. All options
    are checked before anything is imported."""
    from msgspec.structs import replace

    from maitred.client.address import parse_address
    from maitred.config import telemetry_settings
    from maitred.logs import logger
    from maitred.telemetry.start import check
    from maitred.worker.log_handler import take_over
    from maitred.worker.process import default_name, work

    nowhere = {name: None for name in ("host", "monitor_host") if options.get(name) == NOWHERE}
    given = {name: text for name, text in options.items() if name not in nowhere}
    settings = replace(fitted(WorkerSettings, given), **nowhere)
    exported = {"traces": traces, "metrics": otlp_metrics, "endpoint": otlp_endpoint}
    telemetry = telemetry_settings(
        os.environ, {f"telemetry.{name}": text for name, text in exported.items()}
    )
    check(telemetry)
    log_settings = fitted(Log, {"format": log_format, "level": log_level}, "log_")
    log = logger(log_settings)
    if name is not None and not 0 < len(name) <= NAME_LETTERS:
        raise InvalidArgument(f"--name has {len(name)} letters; 1 to {NAME_LETTERS} are allowed.")
    take_over(log, log_settings.level)
    app, handlers = load()
    if url is not None:
        parse_address(url)
        app.node = url
    if token_file is not None:
        app.prefer(token_file=token_file)
    serving = work(app, handlers, settings, name or default_name(), log, forced, telemetry)
    finished = run(serving)
    leave(FINISHED if finished else CUT_OFF)


def fitted(
    schema: type[_Settings], options: Mapping[str, str | None], prefix: str = ""
) -> _Settings:
    """Return the settings of the options that were given."""
    from msgspec import convert

    from maitred.schema import fields_of, fit

    known = fields_of(schema)
    given = {
        name: fit(known[name].kind, text, name, _flag(prefix + name), text=True)
        for name, text in options.items()
        if text is not None
    }
    return convert(given, schema)


def _flag(name: str) -> str:
    return f"--{_FLAGS.get(name, name).replace('_', '-')}"
