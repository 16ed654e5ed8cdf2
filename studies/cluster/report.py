"""What the cluster study found: tables, JSON and sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING

from studies.cluster.settings import CHANGES
from studies.cluster.takeover import SERVER_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from studies.cluster.membership import Change, MembershipRun
    from studies.cluster.settings import ClusterStudySettings
    from studies.cluster.spread import Spread
    from studies.cluster.takeover import Takeover


@dataclass(frozen=True, slots=True)
class ClusterStudy:
    """The settings and everything that was measured."""

    settings: ClusterStudySettings
    membership: list[MembershipRun] = field(default_factory=list)
    spreads: list[Spread] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)

    def tables(self) -> dict[str, list[dict[str, object]]]:
        """Return the tables by their titles; numbers are rounded for people."""
        return {
            "Membership while no node changes, per second": self.table(),
            "One node changes": [
                row for size in self.settings.sizes for row in self._changes(size)
            ],
            "Placement": [_spread_row(one) for one in self.spreads],
            "Takeover of a lost node": [_takeover_row(one) for one in self.takeovers],
        }

    def table(self) -> list[dict[str, object]]:
        """Return the load of membership while no node changes."""
        return [self._steady(runs) for size in self.settings.sizes if (runs := self._runs(size))]

    def as_json(self) -> dict[str, object]:
        return {
            "settings": asdict(self.settings),
            "membership": [asdict(one) for one in self.membership],
            "placement": [asdict(one) for one in self.spreads],
            "takeover": [asdict(one) for one in self.takeovers],
            "findings": self.findings(),
        }

    def findings(self) -> list[str]:
        """Return what the numbers say, in sentences made from them."""
        return [sentence for size in self.settings.sizes for sentence in self._found(size)]

    def markdown(self) -> str:
        """Return all tables and sentences as Markdown."""
        parts = [
            f"### {title}\n\n{_markdown(rows)}\n" for title, rows in self.tables().items() if rows
        ]
        return "\n".join([*parts, *(f"- {sentence}" for sentence in self.findings())])

    def _runs(self, size: int) -> list[MembershipRun]:
        return [one for one in self.membership if one.nodes == size]

    def _of_kind(self, size: int, kind: str) -> list[Change]:
        return [one for run in self._runs(size) for one in run.changes if one.kind == kind]

    def _steady(self, runs: list[MembershipRun]) -> dict[str, object]:
        nodes = runs[0].nodes
        return {
            "nodes": nodes,
            "runs": len(runs),
            "statements/s": round(fmean(one.statements for one in runs), 1),
            "rows written/s": round(fmean(one.rows_written for one in runs), 1),
            "rows read/s": round(fmean(one.rows_read for one in runs), 1),
            "bytes of a beat's answer": runs[0].beat_bytes,
            "links of a node": round(fmean(one.links for one in runs), 1),
            "messages/s of a node": round(fmean(one.messages for one in runs) / nodes, 1),
            "bytes/s of a node": round(fmean(one.message_bytes for one in runs) / nodes),
            "CPU % of an agent": round(100 * fmean(one.cpu_share for one in runs), 2),
        }

    def _changes(self, size: int) -> Iterator[dict[str, object]]:
        for kind in CHANGES:
            found = self._of_kind(size, kind)
            if not found:
                continue
            yield {
                "nodes": size,
                "a node is": kind,
                "times": len(found),
                "everywhere after s": round(median(one.everywhere_seconds for one in found), 3),
                "at most s": round(max(one.everywhere_seconds for one in found), 3),
                "spread of the view, at most ms": round(
                    1_000 * max(one.spread_seconds for one in found), 1
                ),
                "votes, at most": max(one.votes for one in found),
                "statements": round(median(one.statements for one in found)),
                "rows read": round(median(one.rows_read for one in found)),
                "messages": round(median(one.messages for one in found)),
            }

    def _found(self, size: int) -> Iterator[str]:
        if runs := self._runs(size):
            steady = self._steady(runs)
            yield (
                f"{size} nodes: membership is {steady['statements/s']:,} statements a second that "
                f"read {steady['rows read/s']:,} rows."
            )
        for kind in CHANGES:
            if changes := self._of_kind(size, kind):
                yield (
                    f"{size} nodes: a view is everywhere "
                    f"{max(one.everywhere_seconds for one in changes):.2f} s after a node was "
                    f"{kind}, at most."
                )
        for one in self.spreads:
            if one.nodes == size:
                yield (
                    f"{size} nodes, {_name(one)}: losing a node moves {one.moved_by_loss:,} of "
                    f"{one.partitions:,} partitions; the fullest node has "
                    f"{one.max_over_mean:.2f} times the mean; computing the owners of "
                    f"{self.settings.partitions:,} takes "
                    f"{one.owner_us * self.settings.partitions / 1e6:.1f} s of processor time."
                )
        slowest = max(
            (one for one in self.takeovers if one.nodes == size),
            key=lambda one: (one.slowest_seconds, one.listed_rows),
            default=None,
        )
        if slowest is not None:
            yield (
                f"{size} nodes: the {slowest.lost:,} partitions of a lost node that have work are "
                f"loaded {slowest.slowest_seconds:.2f} s after the view with "
                f"{slowest.acquire_ms:g} ms a group; before that the shards read "
                f"{slowest.listed_rows:,} rows to find them."
            )


def _name(one: Spread) -> str:
    return f"{one.placement} with batch {one.batch_size}" if one.batch_size else "basic routing"


def _spread_row(one: Spread) -> dict[str, object]:
    return {
        "nodes": one.nodes,
        "placement": one.placement if one.batch_size else "basic",
        "batch": one.batch_size,
        "partitions": one.partitions,
        "view bytes": one.view_bytes,
        "fullest node/mean": round(one.max_over_mean, 2),
        "emptiest/mean": round(one.min_over_mean, 2),
        "fullest shard/mean": round(one.shard_max_over_mean, 2),
        "moved by a loss": one.moved_by_loss,
        "% ": round(100 * one.moved_by_loss / one.partitions, 2),
        "to one node, at most": one.most_to_one_node,
        "moved by an addition": one.moved_by_addition,
        "%": round(100 * one.moved_by_addition / one.partitions, 2),
        "CPU µs an owner": round(one.owner_us, 1),
    }


def _takeover_row(one: Takeover) -> dict[str, object]:
    return {
        "nodes": one.nodes,
        "% with work": round(100 * one.with_work),
        "ms an acquire": one.acquire_ms,
        "to load": one.lost,
        "one shard, at most": one.most_of_a_shard,
        "slowest shard s": round(one.slowest_seconds, 3),
        "median shard s": round(one.median_seconds, 3),
        "groups": one.commits,
        f"server s, {SERVER_AT_ONCE} at once": round(one.server_seconds, 3),
        "rows listed": one.listed_rows,
    }


def _markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table as Markdown, with the keys of the first row as columns."""
    columns = list(rows[0]) if rows else []
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row[column]) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
