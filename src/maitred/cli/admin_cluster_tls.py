"""`maitred admin cluster init-tls`: the certificates with which the nodes of a cluster start."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maitred.cli.output import CannotWrite, json_option, print_json, print_table

if TYPE_CHECKING:
    from maitred.security.cluster_authority import ClusterFiles, NodeFiles

SNIPPETS_SHOWN = 3
"""Nodes whose settings are printed; those of the others differ only in the name."""

ON_THE_NODE = "/etc/maitred"
"""Where the printed settings expect the files on each machine."""


@click.command(
    "init-tls",
    short_help="Make the certificates of a cluster.",
    epilog="\b\nThree nodes, each with its address as a second name:\n"
    "  maitred admin cluster init-tls node-1,10.0.0.1 node-2,10.0.0.2 node-3,10.0.0.3\n"
    "A fourth one, later, with the authority that is there:\n"
    "  maitred admin cluster init-tls node-4,10.0.0.4",
)
@click.argument("hosts", metavar="HOST[,NAME]...", nargs=-1, required=True)
@click.option(
    "--out",
    metavar="DIR",
    default="cluster-tls",
    show_default=True,
    help="The directory of the authority and of new files.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=730,
    show_default=True,
    help="How long the certificates are valid.",
)
@click.option(
    "--cluster",
    "name",
    metavar="NAME",
    default="maitred",
    show_default=True,
    help="Name of the cluster, for people who read the certificate.",
)
@json_option
def init_tls(hosts: tuple[str, ...], out: str, days: int, name: str, *, as_json: bool) -> None:
    """Make a certificate and a key for each HOST, signed by an authority of the cluster.

    HOST is where clients and other nodes reach the node: a name or an address, as its setting
    cluster.announce has it. Further names follow after commas. The authority is made once: if DIR
    has one, it signs the new certificates as well. No node is asked, and no file is replaced.
    """
    from maitred.security.cluster_authority import init_tls as make
    from maitred.security.cluster_authority import parse_hosts

    directory = Path(out)
    wanted = parse_hosts(hosts)
    try:
        made = make(directory, wanted, cluster=name, now=datetime.now(UTC), days=days)
    except OSError as problem:
        raise CannotWrite(
            f"The files in {directory} cannot be written or read: {problem.strerror}.",
            remedy="Name another directory with --out.",
        ) from None
    if as_json:
        print_json(_told(made))
    else:
        _print(made)


def snippet(node: NodeFiles) -> str:
    """Return the settings of a node, as they stand in its file."""
    place = f"{ON_THE_NODE}/{node.host.file}"
    return "\n".join(
        (
            'host = "0.0.0.0"',
            "",
            "[cluster]",
            f"announce = {json.dumps(node.host.host, ensure_ascii=False)}",
            f'authorities = "{ON_THE_NODE}/cluster-ca.pem"',
            "",
            "[tls]",
            f"certificate = {json.dumps(f'{place}.pem', ensure_ascii=False)}",
            f"key = {json.dumps(f'{place}.key', ensure_ascii=False)}",
        )
    )


def _told(made: ClusterFiles) -> dict[str, object]:
    return {
        "authority": {
            "certificate": str(made.certificate),
            "key": str(made.key),
            "made": made.made,
        },
        "nodes": [
            {
                "host": node.host.host,
                "names": list(node.host.names),
                "certificate": str(node.certificate),
                "key": str(node.key),
                "expires": f"{node.expires_at:%Y-%m-%dT%H:%M:%SZ}",
                "settings": snippet(node),
            }
            for node in made.nodes
        ],
    }


def _print(made: ClusterFiles) -> None:
    print_table(
        [
            {
                "host": node.host.host,
                "also": ", ".join(node.host.names[1:]) or None,
                "certificate": str(node.certificate),
                "key": str(node.key),
                "valid until": f"{node.expires_at:%Y-%m-%d}",
            }
            for node in made.nodes
        ]
    )
    new = "new" if made.made else "the one that was there"
    click.echo(f"\nThe authority is {new}: {made.certificate}, with its key {made.key}.")
    click.echo(
        f"\nCopy {made.certificate.name} and its own two files to each machine, into {ON_THE_NODE},"
        "\nreadable for the node's user only (mode 0600). Clients need only "
        f"{made.certificate.name}, as in\nmaitreds://HOST?ca={made.certificate.name}. Keep "
        f"{made.key.name} away from the nodes: with it anyone could\nimpersonate a node of this "
        "cluster."
    )
    for node in made.nodes[:SNIPPETS_SHOWN]:
        click.echo(f"\nIn the file that `maitred up --config` names, on {node.host.host}:\n")
        click.echo("\n".join(f"  {line}".rstrip() for line in snippet(node).splitlines()))
    rest = len(made.nodes) - SNIPPETS_SHOWN
    if rest > 0:
        click.echo(f"\n{rest} more likewise; --json prints the settings of all.")
    click.echo(
        "\nThe store is the same for all of them: MAITRED_STORE=postgresql://... Users are needed "
        "as\nwell, or public_without_auth = true."
    )
