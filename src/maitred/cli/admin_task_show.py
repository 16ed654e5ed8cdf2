"""`maitred admin task show`: everything that is known of one task, and what will happen next."""

from __future__ import annotations

import textwrap
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import with_suggestion
from maitred.cli.admin_control import told_of_pause
from maitred.cli.admin_payload import WITHHELD, payload_of
from maitred.cli.admin_task_list import COLUMNS, arguments_words, state_words
from maitred.cli.admin_task_names import TaskName, namespace_option, one_task
from maitred.cli.output import LABEL_COLUMNS, counted, json_option, print_json
from maitred.client.answers import ROOT, described
from maitred.errors import MaitredError, UnknownQueue, printable

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.inspection import ListedTask, TaskShown
    from maitred.protocol.tasks import PartitionDescription

COLORS = {
    "running": "green",
    "dead": "red",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
}


@click.command(
    epilog="The id is the one that `Task.id` and `task list` have, as in shop/mails/0/4294967296; "
    "or the queue and the rest of it, as in shop/mails 0/4294967296."
)
@click.argument("words", metavar="[QUEUE] ID", nargs=-1, required=True)
@namespace_option
@node_options
@json_option
def show(words: tuple[str, ...], namespace: str | None, node: AskedNode, *, as_json: bool) -> None:
    """Show one task: its state and why, what comes next, its history, arguments and result.

    Private data (arguments, result, messages of errors, traceback) is shown to users with the
    permission `reveal`; arguments that the handler hides are shown to nobody.
    """
    name = one_task(words, namespace)
    shown, root = node.ask(lambda client: _ask(client, name))
    now = time.time()
    following = next_words(name, shown, root, now)
    if as_json:
        from maitred.client.task_rows import shown_row

        print_json({**shown_row(name.queue, shown), "next": following})
    else:
        _print(name, shown, following, now)


async def _ask(
    client: AsyncClient, name: TaskName
) -> tuple[TaskShown, PartitionDescription | None]:
    """Ask for the task, and for the state of its queue, which says what will come next."""
    from maitred.client.task_lists import show_task

    try:
        shown = await show_task(client, name.queue, name.partition, name.sequence, reveal=True)
    except UnknownQueue as problem:
        raise await with_suggestion(client, name.queue, problem) from None
    try:
        root = await described(client, name.queue, ROOT)
    except MaitredError:
        root = None  # the task is more important
    return shown, root


def _print(name: TaskName, shown: TaskShown, following: str, now: float) -> None:
    task = shown.task
    click.secho(str(name), bold=True)
    _print_fact("state", _state(task, now), COLORS.get(task.state))
    if task.error or task.reason:
        _print_fact("why", _why(task), "red")
    _print_fact("next", following)
    if task.added_at:
        by = f" by {printable(task.by)}" if task.by else ""
        _print_fact("added", f"{moment(task.added_at)}{by}, {units.ago(now - task.added_at)}")
    terms = [f"priority {task.priority}", f"result kept for {units.duration(shown.retention)}"]
    if shown.timeout:
        terms.append(f"timeout {units.duration(shown.timeout)}")
    if task.expires_at:
        terms.append(f"expires at {moment(task.expires_at)} unless it has begun")
    _print_fact("options", ", ".join(terms))
    if shown.function:
        _print_fact("function", printable(shown.function))
    _print_fact("where", f"partition {task.partition}, shard {shown.shard} of {shown.node}")
    _print_timeline(shown)
    _print_private("Arguments", arguments_words(task, indented=True), task.payload_bytes)
    if task.state == "done":
        _print_private("Result", _result(shown), 0)
    if shown.traceback:
        _print_private("Traceback", _lines(shown.traceback).rstrip("\n"), 0)


def _state(task: ListedTask, now: float) -> str:
    """Return the state, since when, at which worker, and how many attempts there were."""
    told: str = state_words(task)
    since = task.started_at if task.state == "running" else task.ended_at
    if task.state == "running" and task.worker:
        told += f" at {printable(task.worker)}"
    if since:
        told += f" for {units.duration(now - since)}" if task.state == "running" else ""
        told += f", {units.ago(now - since)}" if task.state != "running" else ""
    if task.attempts:
        total = task.attempts + task.retries
        told += f", attempt {task.attempts} of {total}" if task.retries else ""
        told += "" if task.retries else f", {counted(task.attempts, 'attempt')}"
    return told


def _why(task: ListedTask) -> str:
    error = ": ".join(filter(None, (task.error, task.message)))
    reason = f"{task.reason}, " if task.reason and error else task.reason
    return printable(f"{reason}{error}")


def next_words(
    name: TaskName, shown: TaskShown, root: PartitionDescription | None, now: float
) -> str:
    """Return what will happen to the task next, and when; or what an operator can do."""
    task = shown.task
    if task.state == "running":
        return _while_running(shown, now)
    if task.state == "waiting":
        return _while_waiting(task, root)
    if task.state == "delayed":
        which = f"attempt {task.attempts + 1}" if task.attempts else "its first attempt"
        due = f"in {units.duration(task.due_at - now)}" if task.due_at > now else "now"
        hint = _hindrance(root)
        return f"{which} is due {due}, at {moment(task.due_at)}{f'; but {hint}' if hint else ''}"
    if task.state == "dead":
        return f"nothing; `maitred admin task retry {name}` tries it again, `drop` deletes it"
    if task.kept_until > now:
        kept = units.duration(task.kept_until - now)
        return f"it is forgotten in {kept}, at {moment(task.kept_until)}"
    return "it is forgotten soon"


def _while_running(shown: TaskShown, now: float) -> str:
    task = shown.task
    if task.cancelling:
        return f"its worker is told to stop it; `maitred admin worker list` shows how {_is(task)}"
    told = "its worker reports how it ends"
    if shown.timeout:
        ends = task.started_at + shown.timeout
        told += f", or it times out in {units.duration(max(ends - now, 0.0))}"
    else:
        told += "; it has no timeout, and `maitred admin task cancel` stops it"
    if shown.lease_until > now:
        lease = units.duration(shown.lease_until - now)
        told += f"; if the worker is lost, it is tried again in {lease}"
    return told


def _is(task: ListedTask) -> str:
    return f"{printable(task.worker)} is" if task.worker else "workers are"


def _while_waiting(task: ListedTask, root: PartitionDescription | None) -> str:
    if task.cancelling:
        return "it is being cancelled, and does not run"
    hint = _hindrance(root)
    if hint:
        return hint
    which = f"attempt {task.attempts + 1}" if task.attempts else "its first attempt"
    workers = 1 if root is None else len(root.workers)
    of = f"one of {workers:,} workers" if workers > 1 else "a worker"
    rate = None if root is None else root.rate_limit_per_second
    limit = "" if rate is None else f"; the queue hands out at most {rate:g} tasks a second"
    return f"{which} begins as soon as {of} has a free slot and no task before it{limit}"


def _hindrance(root: PartitionDescription | None) -> str:
    """Return what keeps tasks of the queue from running, whatever is free; empty: nothing known."""
    if root is None:
        return ""
    if root.controls.pause is not None:
        return f"an operator has to resume the queue, which is paused {told_of_pause(root)}"
    if not root.workers:
        ago = root.served_seconds_ago
        last = "" if ago is None else f" (the last one was there {units.ago(ago)})"
        return f"no worker serves the queue{last}: `maitred worker MODULE:APP` starts one"
    return ""


def _print_timeline(shown: TaskShown) -> None:
    from maitred.client.task_words import event_words

    click.echo()
    click.secho("History", bold=True)
    before = 0.0
    for event in shown.events:
        if event.omitted:
            click.echo(f"            {event.omitted:,} earlier events are no longer known")
        passed = f"+{units.duration(event.at - before)}" if before else ""
        head = f"  {moment(event.at)}  {passed:>8}  "
        click.echo(wrapped(head, event_words(event)))
        before = event.at


def _print_fact(name: str, text: str, color: str | None = None) -> None:
    """Print one fact, on as many lines as it needs."""
    click.secho(wrapped(f"{name:<{LABEL_COLUMNS}}", text), fg=color)


def wrapped(head: str, text: str) -> str:
    """Return the text behind its head, with lines of at most `COLUMNS` columns."""
    lines = textwrap.wrap(text, COLUMNS - len(head)) or [""]
    return head + f"\n{' ' * len(head)}".join(lines)


def _print_private(title: str, text: str, size: int) -> None:
    if not text:
        return
    click.echo()
    click.secho(f"{title} ({units.size(size)})" if size else title, bold=True)
    click.echo(text)


def _result(shown: TaskShown) -> str:
    if shown.result is None:
        return WITHHELD.get(shown.result_withheld, "(not known)")
    return payload_of(shown.result).text()


def _lines(text: str) -> str:
    """Return text that a worker wrote, without control characters except line ends and tabs."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def moment(unix: float) -> str:
    """Return the time to the millisecond, in UTC, as logs have it."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
