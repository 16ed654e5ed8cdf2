"""`maitred admin task`: look at single tasks, and act on them."""

from __future__ import annotations

import click

from maitred.cli.admin_task_actions import again, cancel, drop, retry, run_now
from maitred.cli.admin_task_list import list_tasks
from maitred.cli.admin_task_show import show
from maitred.cli.groups import HintingGroup


@click.group(cls=HintingGroup)
def task() -> None:
    """Tasks: list, show, cancel, retry, run now, drop, run again.

    A task is named by its id, as in shop/mails/0/4294967296, or by its queue and the rest of it.
    The user needs the permission `read` in the namespace to look at tasks, `reveal` to see their
    arguments, results and messages of errors, and `operate` to change them.
    """


for _command in (show, list_tasks, cancel, retry, run_now, drop, again):
    task.add_command(_command)
