"""A real Prometheus, which scrapes what a test starts and evaluates the shipped rules."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from benchmarks.tasks.processes import free_port

from tests.debian import installed
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STATE_SECONDS: Final = 90.0
"""How long a state may take to come, on a machine that runs other tests at the same time."""

WINDOW: Final = "10s"
"""Stands for the windows of the rules, which are minutes."""


def programs() -> tuple[str, str]:
    """prometheus and promtool; root installs Debian's. Skips, loudly, where none can be had."""
    found = installed("prometheus"), installed("promtool", "prometheus")
    if found[0] is None or found[1] is None:
        pytest.skip("NO PROMETHEUS HERE, so neither alerts nor the dashboard are tested.")
    return found[0], found[1]


def hastened(rules: str) -> str:
    """The rules with seconds for minutes: nothing else of them changes."""
    rules = re.sub(r"for: \w+", "for: 0s", rules)
    rules = re.sub(r"\[\d+m\]", f"[{WINDOW}]", rules)
    return re.sub(r"(oldest_seconds\)) > \d+", r"\1 > 1", rules)


class Prometheus:
    """A server that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _ask(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - of any shape
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}{path}?{query}", timeout=60) as answer:  # noqa: S310
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[Any]:
        """The series that the expression has now."""
        return list(self._ask("/api/v1/query", query=expression)["result"])

    def values(self, expression: str) -> list[float]:
        """The values of these series now; NaN is one of them."""
        return [float(one["value"][1]) for one in self.query(expression)]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._ask("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def is_up(self) -> bool:
        try:
            return bool(self._ask("/api/v1/query", query="1"))
        except OSError:
            return False

    def wait_for(self, alert: str) -> None:
        wait_until(lambda: alert in self.firing(), f"{alert} fires", STATE_SECONDS)

    def wait_until_clear(self, alert: str) -> None:
        wait_until(lambda: alert not in self.firing(), f"{alert} is over", STATE_SECONDS)


@contextmanager
def running_prometheus(
    directory: Path, rules: str, targets: Mapping[str, tuple[str, str]]
) -> Iterator[Prometheus]:
    """`targets`: the address of each job, and how often it is scraped."""
    program, _ = programs()
    (directory / "maitred.rules.yml").write_text(rules)
    jobs = [
        {
            "job_name": job,
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "static_configs": [{"targets": [address]}],
        }
        for job, (address, interval) in targets.items()
    ]
    settings = {
        "global": {"evaluation_interval": "250ms"},
        "rule_files": ["maitred.rules.yml"],
        "scrape_configs": jobs,
    }
    (directory / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            wait_until(server.is_up, "Prometheus answers", 60)
            yield server
        finally:
            process.kill()
            process.wait()
