"""docs/monitoring.md lists exactly the metrics that real processes export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.metrics import families
from tests.monitor.scraping import get, lint, parsed, scrape
from tests.monitor.test_processes import pages
from tests.node.nodes import running_node
from tests.tasks.shop import order, printed
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from maitred.metrics.exposition import Family

PAGE = Path(__file__).parent.parent.parent / "docs" / "monitoring.md"
ROW = re.compile(r"^\| `(maitred_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)
NEEDS_MORE = {
    "maitred_cluster_members": "a cluster",
    "maitred_certificate_expires_seconds": "TLS",
    "maitred_audit_records_total": "users",
    "maitred_logins_total": "users",
    "maitred_reloads_total": "a reload",
    "maitred_shard_logins_total": "users",
    **{one.name: "tracing" for one in families.SPANS},
}
"""Metrics without a sample at the processes of these tests, and what they lack."""


def documented(heading: str) -> dict[str, tuple[str, str, str]]:
    """The rows of the table below that line."""
    text = PAGE.read_text()
    assert heading in text
    section = text[text.index(heading) + len(heading) :].lstrip("\n").partition("\n\n")[0]
    return {name: (kind, labels, said) for name, kind, labels, said in ROW.findall(section)}


def as_documented(listed: tuple[Family, ...]) -> dict[str, tuple[str, str, str]]:
    return {
        one.name: (one.kind, ", ".join(f"`{label}`" for label in one.labels), one.text)
        for one in listed
    }


def test_the_tables_say_what_the_program_says() -> None:
    assert documented("Of a node:") == as_documented(families.NODE)
    assert documented("Of a worker:") == as_documented(families.WORKER)


def test_every_metric_of_the_tables_is_exported_and_no_other(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.start_node(shards=2)
        worker = stage.start_worker("--queue", "orders", "--queue", "prints")
        order.sync.enqueue(1).result(timeout=60)
        printed.sync.enqueue(1).result(timeout=60)
        node = scrape(str(stage.node.ready["monitor"]))
        _, text = get(f"{pages(worker)}/metrics")
        lint(text)
        mine = parsed(text)
    listed = documented("Of a node:")
    assert node.families() <= set(listed)
    assert set(listed) - node.families() <= {*NEEDS_MORE, "maitred_errors_total"}
    assert set(documented("Of a worker:")) - mine.families() == {one.name for one in families.SPANS}
    assert mine.families() <= set(documented("Of a worker:"))
    for found, rows in ((node, listed), (mine, documented("Of a worker:"))):
        for name in found.families():
            assert found.kinds[name] == rows[name][0]
            labels = set(re.findall(r"`(\w+)`", rows[name][1]))
            for one, had in found.samples:
                if one == name or one.removesuffix("_sum") == name:
                    assert {label for label, _ in had} == labels, name


def test_the_gateway_exports_what_the_page_says() -> None:
    with running_node(shards=1, gateway=True) as node:
        gateway = str(node.ready["http"])
        assert get(f"{gateway}/v1/shop/queues/nothing")[0] == 404
        _, text = get(f"{gateway}/metrics")
        lint(text)
        errors = scrape(str(node.ready["monitor"])).values("maitred_errors_total")
        assert {dict(labels)["code"] for labels in errors} == {"unknown-queue"}
    found = parsed(text)
    title = "Of a gateway; it also has"
    intro = PAGE.read_text().partition(title)[2].partition("\n")[0]
    rows = documented(title + intro)
    also = set(re.findall(r"`(maitred_\w+)`", intro))
    assert len(also) == 5
    assert found.families() <= set(rows) | also
    assert set(rows) - found.families() <= set(NEEDS_MORE)
    for name, (kind, _, _) in rows.items():
        assert found.kinds.get(name, kind) == kind
    ours = as_documented((families.GATEWAY_ERRORS,))
    assert ours.items() <= rows.items()
    assert found.value("maitred_gateway_errors_total", code="unknown-queue") == 1
