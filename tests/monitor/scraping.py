"""Reads pages as Prometheus does, strictly: what it would refuse, this refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|})')
_ESCAPE: Final = re.compile(r'\\([\\"n])')
SECONDS: Final = 60.0
"""Bounds a hang, on a machine that runs other tests at the same time."""

Labels = tuple[tuple[str, str], ...]


@dataclass
class Scraped:
    """The samples of a page."""

    kinds: dict[str, str] = field(default_factory=dict)
    """By the name of the metric."""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples with these labels, among others; fails if there is none."""
        found = self.values(name, **labels)
        assert found, f"no {name} with {labels}"
        return sum(found.values())

    def values(self, name: str, **labels: str) -> dict[Labels, float]:
        """All samples with these labels, among others."""
        wanted = set(labels.items())
        return {
            had: value
            for (one, had), value in self.samples.items()
            if one == name and wanted <= set(had)
        }

    def families(self) -> set[str]:
        """The names of all metrics that have samples."""
        return set(self.kinds)


def parsed(text: str) -> Scraped:
    """Read a page in the text format; fails for every page that breaks the rules."""
    assert text.endswith("\n")
    found = Scraped()
    helped: set[str] = set()
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, sentence = line[7:].partition(" ")
            assert sentence, line
            assert name not in helped, f"{name} comes twice"
            helped.add(name)
            current = name
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current, line
            found.kinds[name] = kind
        else:
            name, labels, value = _sample(line)
            kind = found.kinds[current]
            ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert name in {current + end for end in ends}, line
            assert kind != "counter" or (name.endswith("_total") and value >= 0), line
            assert (name, labels) not in found.samples, line
            found.samples[name, labels] = value
    _check_histograms(found)
    return found


def _sample(line: str) -> tuple[str, Labels, float]:
    match = _NAME.match(line)
    assert match, line
    name, rest = match.group(), line[match.end() :]
    labels = []
    if rest.startswith("{"):
        at = 1
        while True:
            label = _LABEL.match(rest, at)
            assert label, line
            labels.append((label[1], _ESCAPE.sub(_unescaped, label[2])))
            at = label.end()
            if label[3] == "}":
                break
        rest = rest[at:]
    assert rest.startswith(" "), line
    return name, tuple(sorted(labels)), float(rest[1:])


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _check_histograms(found: Scraped) -> None:
    for (name, labels), count in found.samples.items():
        if name.endswith("_count"):
            family = name.removesuffix("_count")
            buckets = [
                value
                for (one, had), value in found.samples.items()
                if one == f"{family}_bucket" and set(labels) <= set(had)
            ]
            assert buckets == sorted(buckets), name
            assert buckets[-1] == count, name


def get(url: str) -> tuple[int, str]:
    """The status and the body."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def scrape(url: str) -> Scraped:
    """The metrics at that address."""
    status, text = get(f"{url}/metrics")
    assert status == 200, text
    return parsed(text)


def lint(text: str) -> None:
    """Have promtool read the page, where there is one."""
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
