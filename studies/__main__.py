"""`python -m studies` lists the studies."""

from __future__ import annotations

from maitred.cli.output import print_table

STUDIES = {
    "cluster": "How far a cluster scales: membership, placement and takeover with many nodes.",
    "contest": "Which worker gets the query: the policies compared.",
    "limits": "How a worker finds how many queries it can take: a picture of its limit.",
    "matching": "How tasks find workers: Cadence's scenarios on maitred's partitions.",
    "placement": "Where partitions live: balance, and what moves when hosts come and go.",
    "selection": "Which partition to pick: the algorithms compared.",
}

if __name__ == "__main__":
    print_table(
        [
            {"command": f"python -m studies.{name}", "question": question}
            for name, question in STUDIES.items()
        ]
    )
