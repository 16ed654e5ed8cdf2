"""`maitred admin`: the commands for tasks, queues, queries, workers, nodes and backups."""

from __future__ import annotations

import click

from maitred.cli.admin_backup import backup, restore
from maitred.cli.admin_cluster import cluster
from maitred.cli.admin_control import pause, resume, set_settings
from maitred.cli.admin_damaged import damaged
from maitred.cli.admin_dashboards import dashboards
from maitred.cli.admin_dead import dead
from maitred.cli.admin_delete import delete
from maitred.cli.admin_describe import describe
from maitred.cli.admin_list import list_queues
from maitred.cli.admin_node import node
from maitred.cli.admin_partitions import update_partitions
from maitred.cli.admin_problems import problems
from maitred.cli.admin_purge import purge
from maitred.cli.admin_query import query
from maitred.cli.admin_reload import reload
from maitred.cli.admin_task import task
from maitred.cli.admin_token import token
from maitred.cli.admin_watch import watch_queues
from maitred.cli.admin_worker import worker
from maitred.cli.groups import HintingGroup


@click.group(cls=HintingGroup)
def admin() -> None:
    """Inspect and manage tasks, queues, queries, workers, nodes, tokens and backups."""


@admin.group(cls=HintingGroup)
def queue() -> None:
    """Queues: list, watch, pause, set, purge, delete; partitions, dead letters, damaged rows.

    A queue is named with its namespace, as in shop/thumbnails. To look, the user needs the
    permission `read` in that namespace; to change something, `operate`; to see payloads and the
    messages of errors, `reveal`.
    """


for _command in (
    *(list_queues, describe, pause, resume, set_settings, update_partitions),
    *(dead, damaged, purge, delete, watch_queues),
):
    queue.add_command(_command)

admin.add_command(problems)
admin.add_command(task)
admin.add_command(query)
admin.add_command(token)
admin.add_command(worker)
admin.add_command(cluster)
admin.add_command(node)
admin.add_command(reload)
admin.add_command(dashboards)
admin.add_command(backup)
admin.add_command(restore)
