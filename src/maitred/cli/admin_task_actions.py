"""`maitred admin task cancel`, `retry`, `run-now`, `drop`, `again`: by id, or all that match."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable, with_suggestion
from maitred.cli.admin_control import reason_option
from maitred.cli.admin_names import label
from maitred.cli.admin_task_filters import filter_options
from maitred.cli.admin_task_names import TaskName, named_tasks, namespace_option
from maitred.cli.output import counted, json_option, print_json
from maitred.cli.selection import confirm, yes_option
from maitred.client.changed_tasks import ChangedTasks
from maitred.client.task_words import LEFT_WORDS
from maitred.errors import InvalidArgument, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.cli.address import AskedNode
    from maitred.cli.admin_task_filters import ChosenTasks
    from maitred.client.client import AsyncClient
    from maitred.client.task_changes import ChangeStep
    from maitred.protocol.inspection import TaskAction
    from maitred.routing.names import QueueId

NAMED_MAX = 5
"""Ids that a sentence names."""

COUNT_SECONDS = 2.0
"""How long tasks are counted for a question; a person waits."""

PROGRESS_SECONDS = 1.0
"""How long the command works before it says how far it is."""

CHANGED_MEANWHILE = frozenset(("over", "running", "waiting", "not-delayed", "not-dead", "unknown"))
"""Reasons to leave a task that was to be changed because it matched a filter: it no longer does."""

_EPILOG = (
    "Ids are those of `task list`, as in shop/mails/0/4294967296; after QUEUE, 0/4294967296 is "
    "enough. With --all or filters, all tasks of QUEUE that match are meant; what begins, ends or "
    "is added meanwhile is not. It can be interrupted and repeated. Exit status: 0 if it was done "
    "to every task that was meant, 1 otherwise."
)


class TaskVerb(NamedTuple):
    """An action on tasks, in words."""

    action: TaskAction
    question: str
    done: str
    would: str
    warning: str
    asks_for_few: bool = False
    """Whether tasks that were named by id need a confirmation, too."""


CANCEL = TaskVerb(
    "cancel",
    "cancel",
    "cancelled, or told to stop",
    "would be cancelled",
    "Those that run are stopped.",
)
RETRY = TaskVerb(
    "retry", "retry", "will be tried again", "would be tried again", "They will all run again."
)
RUN_NOW = TaskVerb(
    "run-now", "run", "due now", "would be due now", "They all run as soon as slots are free."
)
DROP = TaskVerb(
    "drop",
    "drop",
    "dropped",
    "would be dropped",
    "They cannot be brought back.",
    asks_for_few=True,
)
AGAIN = TaskVerb(
    "again", "add again", "added again", "would be added again", "They will all run once more."
)


def _told(changed: ChangedTasks, verb: TaskVerb, *, dry_run: bool) -> dict[str, object]:
    """Return what came of it for JSON."""
    return {
        "action": verb.action,
        "dry_run": dry_run,
        "matched": changed.matched,
        "done": changed.done,
        "left": changed.left_ids,
        "left_by_reason": dict(changed.left),
        "added": changed.added,
        "unreachable": unreachable("partition", changed.silent),
    }


def _command(
    name: str, verb: TaskVerb, states: Sequence[str], text: str, default: str = "all of these"
) -> click.Command:
    """Make the command of one action."""

    def run(**options: Any) -> None:  # noqa: ANN401 - as click gives them
        _act(verb, **options)

    run.__doc__ = text
    made: Any = run
    for decorate in (
        json_option,
        node_options,
        yes_option,
        reason_option,
        click.option("--dry-run", is_flag=True, help="Only say how many match."),
        filter_options(states, default),
        click.option("--all", "every", is_flag=True, help="All that it applies to."),
        namespace_option,
        click.argument("words", metavar="[QUEUE] [ID]...", nargs=-1),
        click.command(name, epilog=_EPILOG),
    ):
        made = decorate(made)
    command: click.Command = made
    return command


cancel = _command(
    "cancel",
    CANCEL,
    ("running", "waiting", "delayed"),
    """Cancel tasks: they do not run, or are stopped if they run.

    Callers that wait for their results get the error `task-cancelled`.
    """,
)
retry = _command("retry", RETRY, ("dead",), "Try dead letters again, with all their attempts.")
run_now = _command(
    "run-now",
    RUN_NOW,
    ("delayed",),
    "Run delayed tasks now, instead of at the end of their delay or of the wait for a retry.",
)
drop = _command("drop", DROP, ("dead",), "Delete dead letters, for good.")
again = _command(
    "again",
    AGAIN,
    ("dead", "ended", "done", "cancelled", "expired"),
    """Add new tasks with the arguments and options of those that are over or dead.

    A task that is over has its arguments only as long as its history is kept.
    """,
    default="none: name one, unless you give ids",
)


def _act(
    verb: TaskVerb,
    *,
    words: tuple[str, ...],
    namespace: str | None,
    every: bool,
    chosen: ChosenTasks,
    dry_run: bool,
    reason: str,
    yes: bool,
    node: AskedNode,
    as_json: bool,
) -> None:
    named = named_tasks(words, namespace)
    _check(verb, named.tasks, named.queue, every=every, chosen=chosen, dry_run=dry_run)
    changed = ChangedTasks()
    if named.tasks:
        if verb.asks_for_few and not yes:
            number = counted(len(set(named.tasks)), "task")
            confirm(verb.question, number, verb.warning)
        node.ask(lambda client: _change_named(client, verb, named.tasks, reason, changed))
        strict = True
    else:
        assert named.queue is not None  # noqa: S101 - as `_check` has found
        queue = named.queue
        selection = _Selection(verb, queue, chosen, reason)
        tell = None if as_json else lambda text: click.echo(text, err=True)
        strict = False
        if dry_run:
            node.ask(lambda client: selection.change(client, changed, tell, dry_run=True))
        elif yes or _is_confirmed(node, selection):
            try:
                node.ask(lambda client: selection.change(client, changed, tell))
            except KeyboardInterrupt:
                click.echo(
                    f"{label(queue)}: {counted(changed.done, 'task')} {verb.done}, and those of "
                    "the request in flight.",
                    err=True,
                )
                raise
    if as_json:
        print_json(_told(changed, verb, dry_run=dry_run))
    else:
        _print(verb, changed, dry_run=dry_run)
    unexpected = set(changed.left) if strict else set(changed.left) - CHANGED_MEANWHILE
    if unexpected or changed.silent:
        sys.exit(1)


def _check(
    verb: TaskVerb,
    tasks: Sequence[TaskName],
    queue: QueueId | None,
    *,
    every: bool,
    chosen: ChosenTasks,
    dry_run: bool,
) -> None:
    """Raise `InvalidArgument` unless there are either ids, or `--all` or filters of a queue."""
    by_filter = every or not chosen.is_everything
    if tasks and (by_filter or dry_run):
        raise InvalidArgument(
            "Give either ids, or --all or filters.",
            remedy="Tasks that are named by id are changed whatever they are like.",
        )
    if not tasks and not by_filter:
        raise InvalidArgument(
            f"Nothing says which tasks to {verb.question}.",
            remedy="Give ids, as `task list` prints them; or QUEUE with filters, or with --all.",
        )
    if not tasks and queue is None:
        raise InvalidArgument(
            f"Nothing says in which queue to {verb.question} tasks.",
            remedy="Write it before the options, as in shop/mails.",
        )


class _Selection(NamedTuple):
    """The tasks of a queue that match, and what to do to them."""

    verb: TaskVerb
    queue: QueueId
    chosen: ChosenTasks
    reason: str

    async def change(
        self,
        client: AsyncClient,
        changed: ChangedTasks,
        tell: Callable[[str], None] | None,
        *,
        dry_run: bool = False,
        seconds: float | None = None,
    ) -> bool:
        """Change the tasks step by step, and tell the progress after each; or only count them, with
        `dry_run`. Stops after `seconds`; returns whether it came to the end."""
        from maitred.client.task_changes import change_matching

        cursor: str | None = None
        began = time.monotonic()
        while True:
            try:
                step: ChangeStep = await change_matching(
                    client,
                    self.queue,
                    self.verb.action,
                    self.chosen.states,
                    self.chosen.filter(),
                    reveal=True,
                    dry_run=dry_run,
                    cursor=cursor,
                    seconds=PROGRESS_SECONDS,
                    reason=self.reason,
                )
            except UnknownQueue as problem:
                raise await with_suggestion(client, self.queue, problem) from None
            changed.matched += step.matched
            changed.add(self.queue, step.changed)
            cursor = step.cursor
            if cursor is None:
                return True
            if seconds is not None and time.monotonic() - began >= seconds:
                return False
            if tell is not None:
                number = changed.matched if dry_run else changed.done
                words = self.verb.would if dry_run else self.verb.done
                tell(f"{counted(number, 'task')} {words} so far")


def _is_confirmed(node: AskedNode, selection: _Selection) -> bool:
    """Count the tasks, and ask; abort unless the answer is yes. False: there are none."""
    found = ChangedTasks()
    is_all = node.ask(
        lambda client: selection.change(client, found, None, dry_run=True, seconds=COUNT_SECONDS)
    )
    if is_all and not found.matched and not found.silent:
        return False
    number = counted(found.matched, "task")
    verb = selection.verb
    confirm(
        verb.question,
        f"{'' if is_all else 'at least '}{number} of {label(selection.queue)}"
        f"{selection.chosen.words()}",
        verb.warning,
    )
    return True


async def _change_named(
    client: AsyncClient,
    verb: TaskVerb,
    tasks: Sequence[TaskName],
    reason: str,
    changed: ChangedTasks,
) -> None:
    from maitred.client.task_changes import change_tasks

    for queue in dict.fromkeys(task.queue for task in tasks):
        places = {(task.partition, task.sequence) for task in tasks if task.queue == queue}
        changed.matched += len(places)
        try:
            made = await change_tasks(client, queue, verb.action, places, reason=reason)
        except UnknownQueue as problem:
            raise await with_suggestion(client, queue, problem) from None
        changed.add(queue, made)


def _print(verb: TaskVerb, changed: ChangedTasks, *, dry_run: bool) -> None:
    if dry_run:
        click.echo(f"{counted(changed.matched, 'task')} {verb.would}.")
    else:
        click.echo(f"{counted(changed.done, 'task')} {verb.done}.")
    for old, new in list(changed.added.items())[:NAMED_MAX]:
        click.echo(f"{old} runs again as {new}")
    if len(changed.added) > NAMED_MAX:
        click.echo(f"and {changed.done - NAMED_MAX:,} more; --json has their ids")
    for why, number in changed.left.items():
        ids = [one for one, reason in changed.left_ids.items() if reason == why]
        more = f" and {number - NAMED_MAX:,} more" if number > NAMED_MAX else ""
        told = LEFT_WORDS.get(why, f"refused: {why}")
        click.echo(f"Not done, {told}: {', '.join(ids[:NAMED_MAX])}{more}.", err=True)
    print_unreachable(changed.silent, "partition")
