"""A large imaginary node: 10,000 queues, 1,000 workers, 200,000 dead letters, made by arithmetic.

It answers the requests of the HTTP API that the console uses with JSON, from one place, so that the
pages can be looked at and tested at a size that no test could make for real. The same moment and
the same requests give the same answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import to_builtins

from maitred.client.dead_groups import DeadGroup
from maitred.client.queue_problems import problems_of
from maitred.client.queue_states import ListedQueue
from maitred.gateway.admin.queue_views import queue_state
from maitred.gateway.admin.ring_views import partition_of, ring_state
from maitred.matching.controls import Pause
from maitred.membership.ring_map import RingMap
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol.tasks import PartitionDescription
from tests.console.shapes import shaped

QUEUES: Final = 10_000
WORKERS: Final = 1_000
DEAD_LETTERS: Final = 200_000

NAMESPACES: Final = ("bank", "desk", "media", "shop")
KINDS: Final = (
    "mail",
    "thumbnails",
    "invoices",
    "search",
    "payments",
    "reports",
    "imports",
    "push",
)
ERRORS: Final = (
    ("ConnectionRefusedError", "[Errno 111] Connect call failed ('10.0.0.7', 5432)", "failed", 61),
    ("ValueError", "invalid literal for int() with base 10: '12,50'", "failed", 24),
    ("TimeoutError", "", "timed-out", 11),
    ("worker-lost", "", "lost", 3),
    ("KeyError", "'address'", "failed", 1),
)
"""Class, message, reason and percent of the dead letters."""

POISON: Final = (
    "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>{{7*7}}javascript:hack()"
)
"""Text that would run if a page took it for markup, a template or an address."""

POISON_NAME: Final = POISON.replace(":", " ")
"""The same as a name of a queue, a namespace or a user: those have no colons."""

STEP: Final = 10
POINTS: Final = 360


def wave(number: int, moment: float, period: float = 900.0) -> float:
    """Return a number from 0 to 1 that swings slowly, for each `number` in its own way."""
    slow = math.sin(moment / period * math.tau + number * 1.7)
    quick = math.sin(moment / (period / 7.3) * math.tau + number * 0.9)
    return min(1.0, max(0.0, 0.5 + 0.36 * slow + 0.14 * quick))


class Refusal(Exception):
    """The request is refused."""

    def __init__(self, status: int, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": code, "message": message, "remedy": remedy}}


@dataclass
class World:
    """The node at a moment."""

    now: float
    queues: int = QUEUES
    workers: int = WORKERS
    dead_letters: int = DEAD_LETTERS
    poisoned: bool = False
    """Whether `POISON` stands in every field that users can set, or other programs of theirs."""
    still_steps: int = 0
    """In so many of the last steps of the series no task began, so that there are no waits."""
    paused: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    """Requests that changed something: method, path, body."""
    gone: set[str] = field(default_factory=set)
    """Tasks that were dropped, cancelled or retried."""

    _rows: tuple[int, list[dict[str, Any]]] = (0, [])
    """All queues at a moment, for the requests of that second."""

    # Queues

    def rows(self) -> list[dict[str, Any]]:
        moment = int(self.now) + len(self.changes) * 1_000_000_000_000
        if self._rows[0] != moment:
            self._rows = (moment, [self.row(number) for number in range(self.queues)])
        return list(self._rows[1])

    def text(self, usual: str) -> str:
        """Return what a user has typed."""
        return POISON if self.poisoned else usual

    def names(self, number: int) -> tuple[str, str]:
        namespace = NAMESPACES[number % len(NAMESPACES)]
        if self.poisoned and number == 3:
            return namespace, POISON_NAME
        kind = KINDS[(number // len(NAMESPACES)) % len(KINDS)]
        region = number // (len(NAMESPACES) * len(KINDS))
        return namespace, f"{kind}-{region:03}" if region else kind

    def number_of(self, namespace: str, queue: str) -> int:
        if self.poisoned and queue == POISON_NAME:
            return 3
        kind, _, region = queue.partition("-")
        try:
            place = NAMESPACES.index(namespace) + KINDS.index(kind) * len(NAMESPACES)
            number = int(region or 0) * len(NAMESPACES) * len(KINDS) + place
        except ValueError:
            number = self.queues
        if number >= self.queues:
            raise Refusal(
                404,
                "unknown-queue",
                f"The queue {namespace}/{queue} does not exist.",
                f"Did you mean {POISON_NAME if self.poisoned else 'mail'!r}?",
            )
        return number

    def row(self, number: int) -> dict[str, Any]:
        namespace, queue = self.names(number)
        name = f"{namespace}/{queue}"
        swing = wave(number, self.now)
        busy = 1.0 / (1 + number % 97)
        unserved = number == 1
        backlog = int(swing * busy * 4_000) if number % 3 == 0 else int(swing * busy * 30)
        if unserved:
            backlog = 412
        slow = number == 6 or (self.poisoned and number == 3)
        added = swing * busy * 140
        return {
            "namespace": namespace,
            "queue": queue,
            "backlog": backlog + (9_000 if slow else 0),
            "oldest_seconds": 731.0 if unserved else 190.0 if slow else backlog / 900.0,
            "running": 0
            if unserved
            else int(8 * busy * swing) + (1 if number % 7 in (0, 3) else 0),
            "slots_free": 0 if unserved or slow else int(40 * busy * (1 - swing)) + 1,
            "added_per_second": added,
            "finished_per_second": 0.0 if unserved else added * 0.98,
            "failed": int(swing * 17) if number % 5 == 0 else 0,
            "died": self.dead_of(number),
            "dead": self.dead_of(number),
            "paused": self.paused.get(name)
            or (
                {
                    "by": self.text("alice"),
                    "at": self.now - 640,
                    "reason": self.text("The mail provider is down"),
                }
                if number == 2 and name not in self.paused
                else None
            ),
            "partitions": 25 if number in (0, 6) else 1 + number % 3,
            "workers": 0 if unserved else 1 + number % 5,
            "queries_waiting": 0,
            "delayed": 0,
            "recent_ended": int(900 * busy),
            "recent_failed": int(swing * 17) if number % 5 == 0 else 0,
            "run_p50": None if unserved else 0.012 * (1 + number % 7),
            "run_p99": None if unserved else 0.31 * (1 + number % 7),
        }

    def list_problems(self, given: dict[str, str]) -> dict[str, Any]:
        """Return what the real decision says of these queues and their dead letters."""
        listed = [
            row
            for row in self.rows()
            if given.get("namespace", row["namespace"]) == row["namespace"]
        ]
        states = []
        for row in listed:
            pause = row["paused"] and Pause(**row["paused"])
            known = {name: row[name] for name in ListedQueue._fields if name in row}
            states.append(ListedQueue(**known | {"pause": pause}))
        causes = {
            (one.namespace, one.queue): [
                DeadGroup(**group) for group in self.dead_groups(one.namespace, one.queue)["groups"]
            ]
            for one in states
            if one.dead
        }
        found = [to_builtins(one) for one in problems_of(states, causes)]
        total = len(listed)
        return {"problems": found, "looked_at": total, "total": total, "unreachable": []}

    def dead_of(self, number: int) -> int:
        shares = {0: 0.81, 3: 0.1, 8: 0.06, 9: 0.02, 12: 0.009, 21: 0.001}
        return int(self.dead_letters * shares.get(number, 0))

    def list_queues(self, given: dict[str, str]) -> dict[str, Any]:
        rows = self.rows()
        namespaces = {name: self.queues // len(NAMESPACES) for name in NAMESPACES}
        if given.get("namespace"):
            rows = [row for row in rows if row["namespace"] == given["namespace"]]
        match = given.get("match", "").lower()
        rows = [row for row in rows if match in f"{row['namespace']}/{row['queue']}".lower()]
        only = given.get("only")
        if only == "paused":
            rows = [row for row in rows if row["paused"]]
        elif only == "unserved":
            rows = [row for row in rows if row["backlog"] and not row["workers"]]
        elif only == "dead":
            rows = [row for row in rows if row["dead"]]
        by = {
            "backlog": "backlog",
            "oldest": "oldest_seconds",
            "added": "added_per_second",
            "dead": "dead",
        }.get(given.get("sort", "name"))
        rows.sort(key=lambda row: (-row[by] if by else 0, row["namespace"], row["queue"]))
        page = paged("queues", rows, given)
        if self.poisoned:
            namespaces[POISON_NAME] = 1
            error = {"code": "timeout", "message": POISON, "remedy": POISON, "outcome": "unknown"}
            page["unreachable"] = [{"queue": f"shop/{POISON_NAME}", "error": error}]
        return {**page, "namespaces": namespaces}

    def describe(self, namespace: str, queue: str) -> dict[str, Any]:
        number = self.number_of(namespace, queue)
        row = self.row(number)
        count = row["partitions"]
        partitions = [self.partition(number, one, row) for one in range(count)]
        partitions[0] |= {
            "later": row["backlog"] // 20,
            "queue_stored": {
                "tasks": row["backlog"],
                "bytes": row["backlog"] * 320,
                "most_tasks": None,
                "most_bytes": None,
            },
            "namespace_stored": {
                "tasks": 812_345,
                "bytes": 318_000_000,
                "most_tasks": 10_000_000,
                "most_bytes": None,
            },
            "workers": [self.worker(one)["worker"] for one in range(row["workers"])],
            "served_seconds_ago": 0 if row["workers"] else 5_400.0,
            "controls": {"version": 7, "pause": row["paused"], "settings": {}},
            "settings": {
                "rate_per_second": {
                    "value": None,
                    "source": "default",
                    "by": "",
                    "at": 0,
                    "reason": "",
                },
                "scaling.adaptive": {
                    "value": True,
                    "source": "settings",
                    "by": "",
                    "at": 0,
                    "reason": "",
                },
                "scaling.partitions_max": {
                    "value": 32,
                    "source": "live",
                    "by": self.text("alice"),
                    "at": self.now - 86_400,
                    "reason": self.text("Black Friday"),
                },
            },
        }
        found = [shaped(one, PartitionDescription) for one in partitions]
        answer: dict[str, Any] = to_builtins(queue_state(namespace, queue, found))
        return answer

    def partition(self, number: int, partition: int, row: dict[str, Any]) -> dict[str, Any]:
        count = row["partitions"]
        counts = [count, max(1, count - (1 if count == 25 else 0)), 4]
        share = (0.4 + wave(number + partition * 5, self.now, 120)) / count
        return {
            "partition": partition,
            "node": f"{(partition % 3) * 7919 + 4242:08x}-2f6a-4c0e",
            "shard": partition % 4,
            "state": "read-only" if partition == 24 else "writable",
            "counts": counts,
            "range_id": 6,
            "read_level": 4_294_967_296,
            "ack_level": 4_294_967_296,
            "backlog": int(row["backlog"] * share),
            "backlog_age_seconds": row["oldest_seconds"],
            "running": int(row["running"] * share + 0.5),
            "later": 0,
            "dead": int(row["dead"] / count),
            "offers": int(6 * (1 - wave(partition, self.now, 300))) if row["workers"] else 0,
            "workers": [],
            "added_per_second": row["added_per_second"] * share,
            "finished_per_second": row["finished_per_second"] * share,
            "added": 0,
            "finished": 0,
            "failed": 0,
            "lost": 0,
            "matched_at_once": 0,
            "never_written": 0,
            "wait_p50_seconds": 0.002,
            "wait_p99_seconds": 0.009,
            "forwarded_tasks": int(self.now % 100_000 * (1 + partition % 4)) if partition else 0,
            "forwarded_offers": int(self.now % 100_000 * (partition % 3)) if partition else 0,
            "parent": None if partition == 0 else 0 if partition <= 4 else (partition - 1) // 5,
        }

    def series(self, given: dict[str, str]) -> dict[str, Any]:
        if given.get("queue"):
            number = self.number_of(given["namespace"], given["queue"])
            scale = 1.0 / (1 + number % 97)
        else:
            number, scale = 0, 4.0 if not given.get("namespace") else 1.0
        start = self.now // STEP * STEP - STEP * (POINTS - 1)
        moments = [start + STEP * one for one in range(POINTS)]
        load = [wave(number, moment) for moment in moments]
        bad = [max(0.0, wave(number + 40, moment, 1_400) - 0.82) for moment in moments]

        def known(values: list[float]) -> list[float | None]:
            # The node was started twenty minutes into the hour.
            return [None if at < 30 else value for at, value in enumerate(values)]

        def begun(values: list[float]) -> list[float | None]:
            still = POINTS - self.still_steps
            return [value if at < still else None for at, value in enumerate(known(values))]

        return {
            "step_seconds": STEP,
            "from": start,
            "points": {
                "added": known([int(1_200 * scale * one) for one in load]),
                "ended": known([int(1_190 * scale * load[max(0, at - 3)]) for at in range(POINTS)]),
                "failed": known([int(90 * scale * one) for one in bad]),
                "dead": known([int(12 * scale * one) for one in bad]),
                "retried": known([int(70 * scale * one) for one in bad]),
                "backlog": known([int(4_000 * scale * one * one) for one in load]),
                "running": known([int(30 * scale * one) + 1 for one in load]),
                "slots_free": known([int(30 * scale * (1 - one)) for one in load]),
                "wait_p50": begun([0.002 + 0.01 * one**3 for one in load]),
                "wait_p99": begun(
                    [0.009 + 0.4 * one**6 + 3 * two for one, two in zip(load, bad, strict=True)]
                ),
            },
            "unreachable": [],
        }

    # Tasks

    def tasks(self, namespace: str, queue: str, given: dict[str, str]) -> dict[str, Any]:
        number = self.number_of(namespace, queue)
        row = self.row(number)
        state = given.get("state") or "waiting"
        total = {
            "running": row["running"],
            "waiting": row["backlog"],
            "delayed": row["backlog"] // 20 + 3,
            "dead": row["dead"],
            "ended": 5_000,
        }[state]
        most = int(given.get("most", 100))
        start = int(given.get("cursor") or 0)
        found: list[dict[str, Any]] = []
        at = start
        while at < total and len(found) < most and at - start < 50_000:
            one = self.task(namespace, queue, state, at, reveal=given.get("reveal") == "true")
            at += 1
            if fits(one, given) and one["id"] not in self.gone:
                found.append(one)
        return {
            "tasks": found,
            "cursor": str(at) if at < total else None,
            "more": at < total and len(found) < most,
            "unreachable": [],
        }

    def task(
        self, namespace: str, queue: str, state: str, at: int, *, reveal: bool
    ) -> dict[str, Any]:
        error, message, reason, _ = self.error_of(at)
        failed = state in ("dead", "delayed")
        partition, sequence = at % 4, 4_294_967_296 + at * 4 + STATES.index(state) * 1_000_000_000
        return {
            "id": f"{namespace}/{queue}/{partition}/{sequence}",
            "namespace": namespace,
            "queue": queue,
            "partition": partition,
            "sequence": sequence,
            "state": ("done", "done", "done", "cancelled", "expired")[at % 5]
            if state == "ended"
            else state,
            "priority": 2,
            "added_at": self.now - 400 - at * 0.7,
            "by": f"{self.text('carol')}@10.0.0.{at % 9}",
            "attempts": {"running": 1, "waiting": 0, "delayed": 2, "dead": 4, "ended": 1}[state],
            "retries": 2 if state == "delayed" else 0,
            "due_at": self.now + 34 if state == "delayed" else self.now - 300 - at * 0.7,
            "expires_at": 0.0,
            "worker": "" if state == "waiting" else self.text(f"worker-{at % 40:04}"),
            "started_at": self.now - 3 - at
            if state == "running"
            else self.now - 380 - at * 0.7
            if state != "waiting"
            else 0.0,
            "ended_at": self.now - 60 - at * 0.5 if state in ("dead", "ended") else 0.0,
            "kept_until": self.now + 600 if state == "ended" else 0.0,
            "cancelling": False,
            "reason": reason if state == "dead" else "",
            "error": error if failed else "",
            "message": message if failed and reveal else "",
            "payload_bytes": 96 + at % 900,
            "withheld": "",
            "arguments": {
                "address": self.text(f"customer-{at}@example.com"),
                "order": 7_000_000 + at,
                self.text("lines"): [1, 2, 3],
                "card": "[hidden]",
            }
            if reveal
            else None,
        }

    def error_of(self, at: int) -> tuple[str, str, str, int]:
        place = (at * 37) % 100
        for one in ERRORS:
            place -= one[3]
            if place < 0:
                if self.poisoned and one is ERRORS[0]:
                    return POISON, POISON, "failed", one[3]
                return one
        return ERRORS[-1]

    def history(
        self, namespace: str, queue: str, partition: int, sequence: int, given: dict[str, str]
    ) -> dict[str, Any]:
        self.number_of(namespace, queue)
        offset = sequence - 4_294_967_296
        state = STATES[max(0, min(4, offset // 1_000_000_000))]
        at = offset % 1_000_000_000 // 4
        reveal = given.get("reveal") == "true"
        task = self.task(namespace, queue, state, at, reveal=reveal)
        if task["partition"] != partition or offset < 0:
            raise Refusal(
                404,
                "unknown-task",
                f"The task {namespace}/{queue}/{partition}/{sequence} does not exist.",
            )
        error, message, reason, _ = self.error_of(at)
        message = message if reveal else ""
        added = task["added_at"]
        worker = task["worker"] or "worker-0001"
        events: list[dict[str, Any]] = [{"at": added, "what": "added", "by": task["by"]}]
        if state in ("dead", "delayed"):
            attempts = 4 if state == "dead" else 2
            moment = added
            for attempt in range(1, attempts + 1):
                moment += 2.0 if attempt == 1 else 10.0 * attempt
                events.append(
                    {
                        "at": moment,
                        "what": "started",
                        "attempt": attempt,
                        "worker": worker,
                        "forwarded": attempt == 2,
                    }
                )
                moment += 6.4
                what = {"timed-out": "timed-out", "lost": "lost"}.get(reason, "failed")
                events.append(
                    {
                        "at": moment,
                        "what": what,
                        "attempt": attempt,
                        "worker": worker,
                        "error": error,
                        "message": message,
                    }
                )
            if state == "dead":
                events.append({"at": moment, "what": "dead", "error": error})
            else:
                events.append({"at": task["due_at"], "what": "retry", "attempt": attempts + 1})
        elif state == "running":
            events.append(
                {"at": task["started_at"], "what": "started", "attempt": 1, "worker": worker}
            )
        elif state == "ended":
            if task["state"] == "done":
                events.append(
                    {"at": task["started_at"], "what": "started", "attempt": 1, "worker": worker}
                )
            events.append(
                {"at": task["ended_at"], "what": task["state"], "attempt": 1, "worker": worker}
            )
            events.append({"at": task["kept_until"], "what": "forgotten"})
        nothing: dict[str, Any] = dict.fromkeys(("worker", "by", "error", "message"), "")
        nothing |= {"attempt": 0, "forwarded": False, "omitted": 0}
        return {
            "task": task,
            "events": [nothing | event for event in events],
            "node": "00001092-2f6a-4c0e",
            "shard": partition,
            "retention": 600.0,
            "timeout": 30.0,
            "lease_until": self.now + 9 if state == "running" else 0.0,
            "traceback": self.text(TRACEBACK) if state == "dead" and reveal else "",
            "result": {self.text("sent"): True, "to": self.text("customer")}
            if state == "ended" and reveal
            else None,
            "result_withheld": "" if reveal else "permission",
            "function": self.text("send_mail"),
        }

    def dead_groups(self, namespace: str, queue: str) -> dict[str, Any]:
        number = self.number_of(namespace, queue)
        dead = self.dead_of(number)
        groups = []
        for place, (error, message, reason, percent) in enumerate(ERRORS):
            first = next(at for at in range(100) if self.error_of(at)[3] == percent)
            groups.append(
                {
                    "error": POISON if self.poisoned and place == 0 else error,
                    "message": self.text(message),
                    "reason": reason,
                    "count": dead * percent // 100,
                    "newest_at": self.now - 60 - place * 500,
                    "example": f"{first % 4}/{4_294_967_296 + first * 4 + 3_000_000_000}",
                }
            )
        groups = [one for one in groups if one["count"]]
        answer = {"groups": groups, "looked_at": dead, "more": False, "cursor": None}
        return {**answer, "unreachable": []}

    def act(self, body: dict[str, Any], namespace: str, queue: str) -> dict[str, Any]:
        if "ids" in body:
            self.gone |= {f"{namespace}/{queue}/{one}" for one in body["ids"]}
            again = body["action"] == "again"
            added = dict.fromkeys(body["ids"], "0/4294967312") if again else {}
            return {
                "done": len(body["ids"]),
                "left": {},
                "added": added,
                "matched": len(body["ids"]),
                "cursor": None,
                "unreachable": [],
            }
        number = self.number_of(namespace, queue)
        total = self.dead_of(number)
        error = body["filter"].get("error")
        if error:
            total = sum(total * one[3] // 100 for one in ERRORS if one[0] == error)
        start = int(body.get("cursor") or 0)
        done = min(total - start, 60_000)
        end = start + done
        return {
            "done": 0 if body.get("dry_run") else done,
            "left": {},
            "added": {},
            "matched": done,
            "cursor": str(end) if end < total else None,
            "unreachable": [],
        }

    # Workers, queries, nodes

    def worker(self, number: int) -> dict[str, Any]:
        slots = (8, 16, 4, 100, 32)[number % 5]
        busy = max(int(self.poisoned), int(slots * wave(number, self.now, 200)))
        queues = ["/".join(self.names(number % 40 + one)) for one in range(1 + number % 4)]
        return {
            "worker": f"{POISON}{number}"
            if self.poisoned and number < 5
            else f"worker-{number:04}",
            "session": f"{number * 2_654_435_761 % 2**64:032x}",
            "queues": queues,
            "queue_count": len(queues),
            "slots": slots,
            "busy": busy,
            "limit": max(busy, int(slots * 0.8)),
            "limit_reason": self.text("latency"),
            "state": "offline" if number % 31 == 5 else "online",
            "online": number % 31 != 5,
            "suspected": False,
            "good": 1.0,
            "blocked": 0,
            "running": [
                {"queue": queues[0], "since": self.now - one * 7.3}
                | ({"task": f"0/{4_294_967_296 + one * 4}"} if one % 4 else {"query": 9_000 + one})
                for one in range(min(busy, 20))
            ],
            "heard_seconds": 0.4 + number % 9,
            "address": f"10.0.{number // 250}.{number % 250}:40{number % 100:02}",
        }

    def list_workers(self, given: dict[str, str]) -> dict[str, Any]:
        rows = [self.worker(number) for number in range(self.workers)]
        match = given.get("match", "").lower()
        rows = [row for row in rows if match in row["worker"].lower()]
        if given.get("queue"):
            name = f"{given['namespace']}/{given['queue']}"
            rows = [row for row in rows if name in row["queues"]]
        return paged("workers", rows, given)

    def queries(self, namespace: str, given: dict[str, str]) -> dict[str, Any]:
        statuses = (
            "running",
            "running",
            "waiting",
            "streaming",
            "done",
            "done",
            "failed",
            "refused",
            "cancelled",
            "late",
        )
        rows = []
        for number in range(200):
            status = statuses[number * 7 % 10] if number > 150 else statuses[4 + number % 6]
            received = self.now - (200 - number) * 1.3
            rows.append(
                {
                    "gateway": "12345678",
                    "sequence": 9_000 + number,
                    "user": (POISON_NAME if self.poisoned else "bob", "carol", "dave")[number % 3],
                    "connection": "10.0.0.9:51234",
                    "namespace": namespace,
                    "queue": self.names(3 if self.poisoned else number % 20 * 4)[1],
                    "query": self.text("select * from quote where sym = 'ACME'"),
                    "priority": 2,
                    "status": status,
                    "received_at": received,
                    "sent_at": 0.0 if status in ("waiting", "refused") else received + 0.01,
                    "returned_at": 0.0
                    if status in ("running", "waiting", "streaming")
                    else received + 0.4,
                    "worker": ""
                    if status in ("waiting", "refused")
                    else self.text(f"worker-{number % 40:04}"),
                    "error": {
                        "failed": self.text("ValueError: no such symbol"),
                        "refused": self.text("overloaded: The queue has 10,000 queries waiting."),
                        "late": self.text("deadline-exceeded: The deadline passed."),
                    }.get(status, ""),
                    "bytes_in": 60,
                    "bytes_out": 0 if status in ("waiting", "refused") else 4_096 * (number % 7),
                    "attempts": 1,
                    "relayed": number % 17 == 0,
                }
            )
        for name in ("status", "queue", "user", "worker"):
            if given.get(name):
                rows = [row for row in rows if row[name] == given[name]]
        return {"queries": rows[-int(given.get("most", 100)) :]}

    def nodes(self) -> dict[str, Any]:
        def shards(node: int) -> list[dict[str, Any]]:
            return [
                {
                    "node": f"{node:08x}",
                    "shard": one,
                    "pid": 4_000 + one,
                    "state": "serving",
                    "release": "0.1.0",
                    "address": f"10.0.0.{node}:{4748 + one}",
                    "uptime_seconds": 86_400.0 * 3 + node * 1_000,
                    "restarts": 1 if (node, one) == (2, 3) else 0,
                    "load": wave(node * 4 + one, self.now, 60),
                    "memory_bytes": 180_000_000 + one * 7_000_000,
                    "connections": 340 + one,
                    "requests": 12_345_678,
                    "requests_per_second": 4_000 * wave(node + one, self.now, 60),
                    "in_flight": 12,
                    "forwarded": 991,
                    "received_forwarded": 990,
                    "errors": {},
                    "loop_lag_seconds": 0.003 * wave(one, self.now, 30),
                    "parts": {
                        "writer": {"commits": 88_123, "partitions_waiting": one},
                        "partitions": {"loaded": 1_280 + 17 * one},
                    },
                }
                for one in range(4)
            ]

        return {
            "cluster": "maitred",
            "version": 41,
            "protocol": 3,
            "lease_seconds": 5.0,
            "problem": "",
            "nodes": [
                {
                    "id": f"m{one}",
                    "node": f"{one:08x}",
                    "address": f"10.0.0.{one}:4747",
                    "state": "active",
                    "release": "0.1.0",
                    "protocol": 3,
                    "shards": 4,
                    "since": self.now - 86_400 * 3,
                    "load": wave(one, self.now, 60),
                    "beat_seconds_ago": 0.6,
                    "partitions": 5_120 + one * 31,
                    "held": None,
                    "clock_ahead_seconds": 0.0,
                }
                for one in (1, 2, 3)
            ],
            "shards": [shard for one in (1, 2, 3) for shard in shards(one)],
            "unreachable": [],
        }

    def worker_series(self, session: str) -> dict[str, Any]:
        """The past of a worker that was started 40 minutes ago, whose limit the latency moves."""
        number = next(
            (one for one in range(self.workers) if self.worker(one)["session"] == session), None
        )
        start = int(self.now) // STEP * STEP - POINTS * STEP
        points: dict[str, list[float | None]] = {"limit": [], "busy": [], "slots": []}
        for step in range(POINTS if number is not None else 0):
            slots = (8, 16, 4, 100, 32)[(number or 0) % 5]
            limit = max(1, round(slots * (0.55 + 0.45 * wave(number or 0, start + step * STEP))))
            busy = round(limit * wave((number or 0) + 1, start + step * STEP, 300))
            for name, value in (("limit", limit), ("busy", busy), ("slots", slots)):
                points[name].append(None if step < POINTS // 3 else value)
        return {
            "step_seconds": STEP,
            "from": start,
            "points": points if number is not None else {},
            "unreachable": [],
        }

    def nodes_series(self) -> dict[str, Any]:
        start = int(self.now) // STEP * STEP - POINTS * STEP
        moments = [start + step * STEP for step in range(POINTS)]

        def points(node: int, shard: int) -> dict[str, list[float | None]]:
            number = node * 4 + shard
            busy = [wave(number, moment, 1_200) for moment in moments]
            return {
                "load": [0.9 * one for one in busy],
                "loop_lag": [0.002 + 0.02 * one**4 for one in busy],
                "memory": [1.7e8 + 3e7 * one for one in busy],
                "requests": [4e4 * one for one in busy],
                "commits": [900 * one for one in busy],
                "failed_commits": [0.0 for one in busy],
                "commit_p50": [0.002 + 0.001 * one for one in busy],
                "commit_p99": [0.006 + 0.03 * one**3 for one in busy],
                "commit_rows": [1 + 40 * one for one in busy],
            }

        shards = [
            {"node": f"{node:08x}", "shard": shard, "points": points(node, shard)}
            for node in (1, 2, 3)
            for shard in range(4)
        ]
        return {"step_seconds": STEP, "from": start, "shards": shards, "unreachable": []}

    def ring(self, given: dict[str, str]) -> dict[str, Any]:
        """The real ring of the members."""
        members = tuple(
            ClusterMember(
                id=one["id"],
                node=one["node"],
                host=one["address"].partition(":")[0],
                port=4747,
                member_port=4751,
                shards=one["shards"],
                shard_ports=(),
                state=MemberState.ACTIVE,
            )
            for one in self.nodes()["nodes"]
        )
        view = ClusterView(cluster="maitred", version=41, members=members, spread_batch="8")
        names = (given.get("namespace", ""), given.get("queue", ""))
        count = len(self.describe(*names)["partitions"]) if names[1] else 0
        state = ring_state(view)
        moves = RingMap(view, given.get("leaving", "")).moves(*names, 1, count, self.now)
        state.partitions = [partition_of(one) for one in moves]
        answer: dict[str, Any] = to_builtins(state)
        return answer

    def handlers(self, namespace: str, queue: str) -> dict[str, Any]:
        self.number_of(namespace, queue)
        return {
            "functions": [
                {
                    "function": self.text("send_mail"),
                    "parameters": [
                        {"name": "address", "type": "str", "required": True, "hidden": False},
                        {"name": "order", "type": "int", "required": True, "hidden": False},
                        {
                            "name": "lines",
                            "type": ["list", "int"],
                            "required": False,
                            "hidden": False,
                        },
                        {"name": "urgent", "type": "bool", "required": False, "hidden": False},
                        {
                            "name": self.text("colour"),
                            "type": ["values", self.text("red"), "blue"],
                            "required": False,
                            "hidden": False,
                        },
                        {"name": "card", "type": "str", "required": True, "hidden": True},
                    ],
                }
            ],
            "takes_anything": False,
            "served_seconds_ago": 0.0,
        }

    # Requests

    def view(self, handler: str, given: dict[str, str], values: tuple[Any, ...]) -> dict[str, Any]:
        """Return what a view of the admin API answers."""
        match handler, values:
            case "list_queues", ():
                return self.list_queues(given)
            case "list_problems", ():
                return self.list_problems(given)
            case "show_series", ():
                return self.series(given)
            case "list_workers", ():
                return self.list_workers(given)
            case "list_nodes", ():
                return self.nodes()
            case "show_nodes_series", ():
                return self.nodes_series()
            case "show_ring", ():
                return self.ring(given)
            case "show_worker_series", (session,):
                return self.worker_series(session)
            case "list_queries", (namespace,):
                return self.queries(namespace, given)
            case "describe_queue", (namespace, queue):
                return self.describe(namespace, queue)
            case "list_tasks", (namespace, queue):
                return self.tasks(namespace, queue, given)
            case "list_dead_groups", (namespace, queue):
                return self.dead_groups(namespace, queue)
            case "list_handlers", (namespace, queue):
                return self.handlers(namespace, queue)
            case "task_history", (namespace, queue, partition, sequence):
                return self.history(namespace, queue, partition, sequence, given)
        raise Refusal(404, "unknown-route", f"There is no view {handler}.")

    def change(
        self,
        method: str,
        handler: str,
        values: tuple[Any, ...],
        body: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Answer a request that changes something."""
        self.changes.append((method, handler, body))
        match handler, values:
            case "act_on_tasks", (namespace, queue):
                return self.act(body, namespace, queue)
            case "pause_queue", (namespace, queue):
                pause = {"by": "alice", "at": self.now, "reason": body["reason"]}
                self.paused[f"{namespace}/{queue}"] = pause
                return self.controls(pause)
            case "resume_queue", (namespace, queue):
                self.paused[f"{namespace}/{queue}"] = {}
                return self.controls(None)
            case "set_queue", _:
                return self.controls(None)
            case "resize_queue", _:
                return {"read": body["read"], "write": body["write"], "version": 5}
            case "purge_queue", _:
                return {"tasks": {"waiting": 412}, "cursor": None, "unreachable": []}
            case "delete_queue", _:
                return {"partitions": 25, "tasks": 412, "dead": 0, "workers": 1}
            case (("worker_offline" | "worker_online"), _):
                return {"workers": [self.worker(0)]}
            case "add_task", (namespace, queue):
                name = f"{namespace}/{queue}/0/4294967300"
                return {"id": name, "partition": 0, "sequence": 4294967300, "location": "/"}
            case "cancel_task", _:
                return {"state": "cancelled"}
            case "query", _:
                return {"asked": body}
            case "cancel_query", (_, sequence):
                return {"sequence": sequence, "state": "cancelling"}
        raise Refusal(404, "unknown-route", f"There is no action {handler}.")

    def controls(self, pause: dict[str, Any] | None) -> dict[str, Any]:
        """Answer that the controls of a queue have changed."""
        controls = {"version": 8, "pause": pause}
        return {"controls": controls, "changed": True, "partitions": 25, "told": 25}


STATES: Final = ("running", "waiting", "delayed", "dead", "ended")

TRACEBACK: Final = """\
Traceback (most recent call last):
  File "shop/mail.py", line 41, in send_mail
    reply = provider.send(address, text)
  File "shop/provider.py", line 17, in send
    raise ConnectionRefusedError(111, f"Connect call failed {self.address}")
ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.7', 5432)
"""


def fits(task: dict[str, Any], given: dict[str, str]) -> bool:
    """Whether a task passes the filter of the request."""
    for name in ("worker", "error"):
        if given.get(name, "").lower() not in task[name].lower():
            return False
    by: str = task["by"]
    added_at: float = task["added_at"]
    return by.startswith(given.get("by", "")) and added_at >= float(given.get("added_after", 0))


def paged(name: str, rows: list[dict[str, Any]], given: dict[str, str]) -> dict[str, Any]:
    """Return one page of a list."""
    start, most = int(given.get("cursor") or 0), int(given.get("most", 100))
    end = start + most
    return {
        name: rows[start:end],
        "cursor": str(end) if end < len(rows) else None,
        "unreachable": [],
    }
