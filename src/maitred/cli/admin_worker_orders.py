"""`maitred admin worker offline | online`.

The order reaches the worker in the answer to a request that it holds at the root of its queues, at
once if it lives. Offline, it takes its offers back and finishes what it has; it goes on attending,
so that it can be put back, and it stays offline until somebody does that, or it is started again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import Silent, connecting, each
from maitred.cli.admin_names import json_option, label, queue_id
from maitred.cli.admin_worker_ask import (
    SESSION_LETTERS,
    ServingWorker,
    ask,
    meant,
    no_empty_name,
    present,
)
from maitred.cli.output import print_json
from maitred.errors import UnknownWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.client import AsyncClient
    from maitred.routing.names import QueueId

_Command = TypeVar("_Command", bound="Callable[..., Any]")
Order = Literal["offline", "online"]

LOOK_SECONDS = 0.5
"""How often `--wait` looks how far it is."""


class Ordered(NamedTuple):
    """The workers that got an order, their state afterwards, and the queues whose root did not
    answer."""

    told: list[ServingWorker]
    states: dict[str, str]
    """By session, as seen last; `gone` if it has ended."""
    silent: dict[str, Silent]


def _options(command: _Command) -> _Command:
    for decorate in (
        json_option,
        timeout_option,
        url_option,
        click.option("--namespace", metavar="NAME", help="Of the queues, if they are only names."),
        click.option(
            "--queue",
            "queues",
            metavar="QUEUE",
            multiple=True,
            help="Look for it at this queue only; may be repeated.  [default: at all queues]",
        ),
        click.argument("name"),
    ):
        command = decorate(command)
    return command


@click.command(epilog="Exit status: 0 if the worker was told (with --wait: is offline), else 1.")
@_options
@click.option("--wait", is_flag=True, help="Wait until nothing runs there any more.")
def offline(*, wait: bool, **options: Any) -> None:  # noqa: ANN401
    """Take the worker NAME offline: it gets no more work, and finishes what it has.

    Then it can be stopped, or put back with `maitred admin worker online`. If several workers have
    the name, all of them are meant; the first letters of a session say which.
    """
    _act("offline", wait=wait, **options)


@click.command(epilog="Exit status: 0 if the worker was told, 1 otherwise.")
@_options
def online(**options: Any) -> None:  # noqa: ANN401
    """Put the worker NAME back: it offers its slots again, and serves what waits."""
    _act("online", wait=False, **options)


def _act(
    order: Order,
    *,
    name: str,
    queues: tuple[str, ...],
    namespace: str | None,
    url: str,
    timeout: float,
    wait: bool,
    as_json: bool,
) -> None:
    no_empty_name(name)
    named = [queue_id(one, namespace) for one in queues]
    done = run(_give(url, timeout, order, name, named, wait=wait, quiet=as_json))
    if as_json:
        print_json(
            {
                "order": order,
                "workers": [
                    {
                        "worker": one.row.worker,
                        "session": one.session,
                        "state": done.states[one.session],
                        "queues": [label(queue) for queue in one.queues],
                    }
                    for one in done.told
                ],
                "unreachable": [
                    {"queue": queue, "error": silent.told()}
                    for queue, silent in done.silent.items()
                ],
            }
        )
    else:
        for one in done.told:
            click.echo(_sentence(order, one, done.states[one.session]))
    for queue, reason in done.silent.items():
        click.echo(f"{queue}: {reason}", err=True)
    if done.silent:
        sys.exit(1)


def _name(one: ServingWorker) -> str:
    return f"{one.row.worker} ({one.session[:SESSION_LETTERS]})"


def _sentence(order: Order, one: ServingWorker, state: str) -> str:
    if order == "online":
        return f"{_name(one)} was told to offer its {one.row.slots} slots again."
    if state == "gone":
        return f"{_name(one)} has ended."
    if state == "offline":
        return (
            f"{_name(one)} is offline: nothing runs there. "
            f"`maitred admin worker online {one.session[:SESSION_LETTERS]}` puts it back."
        )
    return (
        f"{_name(one)} takes no more work, and finishes what it has "
        f"({one.row.busy} of {one.row.slots} slots when it was heard of last)."
    )


async def _give(
    url: str,
    seconds: float,
    order: Order,
    name: str,
    queues: list[QueueId],
    *,
    wait: bool,
    quiet: bool,
) -> Ordered:
    async with connecting(url, seconds) as client:
        there = await present(client, queues)
        told = meant(there, name)
        silent = dict(there.silent)
        states: dict[str, str] = {}
        for one in told:
            answers = await each(
                one.queues,
                lambda queue, one=one: ask(client, queue, order, one.session),  # type: ignore[misc]
            )
            for queue, answer in zip(one.queues, answers, strict=True):
                if not isinstance(answer, Silent):
                    rows = [row for row in answer if row.session == one.row.session]
                    states |= {row.session.hex(): row.state for row in rows}
                elif not isinstance(answer.error, UnknownWorker):  # it has ended in between
                    silent[label(queue)] = answer
            states.setdefault(one.session, "gone")
        if wait:
            states |= await _until_offline(client, told, quiet=quiet)
    return Ordered(told, states, silent)


async def _until_offline(
    client: AsyncClient, told: list[ServingWorker], *, quiet: bool
) -> dict[str, str]:
    """How they are, when none of them has anything left to do."""
    import asyncio

    said = ""
    while True:
        queues = list(dict.fromkeys(queue for one in told for queue in one.queues))
        now = {one.session: one for one in (await present(client, queues)).workers}
        left = [now[one.session] for one in told if one.session in now]
        busy = [one for one in left if one.row.state != "offline"]
        if not busy:
            return {one.session: "offline" if one.session in now else "gone" for one in told}
        text = ", ".join(
            f"{one.row.worker} {'told' if one.row.state == 'online' else one.row.state}, "
            f"{one.row.busy} of {one.row.slots} slots busy"
            for one in busy
        )
        if text != said and not quiet:
            click.echo(text, err=True)
            said = text
        await asyncio.sleep(LOOK_SECONDS)
