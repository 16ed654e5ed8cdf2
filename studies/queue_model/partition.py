"""One partition of the modelled queue: it pairs tasks with polls, and forwards both up the tree.

The rules are Cadence's:

- A new task waits 10 ms for a poll, then is forwarded if a token is free at that moment, else it
  is written to the backlog. If the parent finds no poll either, the child writes it.
- The backlog has one dispatcher: its head waits 10 ms, then for a poll or a token, whichever
  comes first. Forwarded, it stays away for at most 2 s; after a failure it listens at home until
  those 2 s are over, and tries again.
- A poll waits 10 ms, then for a task or a token. Forwarded, it does not listen at home, and an
  empty answer of the parent ends it. With `listen_at_home` it goes on listening.

A poll that listens in two places could be given two tasks. So a parent only *hands over* a task to
a poll that came from a child: the child takes it for the poll or refuses it, and until it has
answered, the task is offered to nobody else. Each task has one place that may give it away, and
each poll one place that may accept for it: its home.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from maitred.balancing import BacklogHint
from studies.queue_model.offers import REFUSED, TAKEN, Clock, Demand, Supply, Task
from studies.queue_model.rates import RateLimit, RateTracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from studies.queue_model.settings import ModelSettings


class Counters:
    """What happened in all partitions of a run."""

    __slots__ = ("poll_forwards", "refusals", "stored", "task_forwards")

    def __init__(self) -> None:
        self.poll_forwards = 0
        self.task_forwards = 0
        self.stored = 0
        self.refusals = 0


class Partition:
    """A place where tasks and polls meet."""

    def __init__(
        self,
        clock: Clock,
        number: int,
        parent: Partition | None,
        settings: ModelSettings,
        counters: Counters,
    ) -> None:
        self.number = number
        self.backlog: deque[Task] = deque()
        self._clock = clock
        self._parent = parent if settings.forwarding else None
        self._settings = settings
        self._counters = counters
        self._polls: deque[Supply] = deque()
        self._demands: deque[Demand] = deque()
        self._head: Demand | None = None
        """The task of the backlog that the dispatcher has in hand."""
        self._dispatching = False
        self._writing = 0
        self._head_wants_token = False
        self._polls_wanting_token: deque[Supply] = deque()
        self._poll_tokens = settings.forward_polls_max
        self._task_tokens = settings.forward_tasks_max
        self._limit = RateLimit(settings.forward_rate_per_second)
        self._rate = RateTracker()

    # What others see.

    def hint(self) -> BacklogHint:
        backlog = len(self.backlog) + (self._head is not None)
        if self._settings.hint_backlog_max is not None:
            backlog = min(backlog, self._settings.hint_backlog_max)
        return BacklogHint(backlog, self._rate.per_second(self._clock.time()))

    def left_over(self) -> list[str]:
        """What is not as it was before the first task came; nothing, once all tasks are done."""
        settings = self._settings
        found = {
            "tasks in the backlog": len(self.backlog),
            "a head of the backlog": int(self._head is not None),
            "tasks offered": len(self._demands),
            "tasks being written": self._writing,
            "polls waiting": len(self._polls),
            "polls wanting a token": sum(not poll.over for poll in self._polls_wanting_token),
            "poll tokens out": settings.forward_polls_max - self._poll_tokens,
            "task tokens out": settings.forward_tasks_max - self._task_tokens,
        }
        return [
            f"partition {self.number}: {count} {what}" for what, count in found.items() if count
        ]

    # Tasks.

    def add(self, task: Task) -> None:
        """A producer's task arrives."""
        now = self._clock.time()
        self._rate.add(now)
        task.home = self.number
        self._offer(
            Demand(
                task,
                stored=False,
                from_child=False,
                deadline=now + self._settings.add_budget_seconds,
                settled=lambda taken: None if taken else self._write(task),
            )
        )

    def begin_with(self, tasks: list[Task]) -> None:
        """Tasks that are in the backlog from the start."""
        for task in tasks:
            task.home = self.number
            task.stored = True
        self.backlog.extend(tasks)
        self._dispatch()

    def _offer(self, demand: Demand) -> None:
        if self._polls:
            self._pair(demand, self._polls.popleft())
            return
        left = demand.deadline - self._clock.time()
        if left <= 0:
            demand.settled(REFUSED)
            return
        self._demands.append(demand)
        wait = min(left, self._settings.local_wait_seconds)
        demand.timer = self._clock.call_later(wait, self._waited_at_home, demand)

    def _waited_at_home(self, demand: Demand) -> None:
        demand.timer = None
        if demand.reserved:
            demand.expired = True
            return
        if demand is self._head:
            # It listens until it is taken; the forwarder is a second chance.
            self._head_seeks_token()
            return
        if demand.stored and self._parent is None:
            # A child's backlog, at the root: waits for a poll as long as the child lets it.
            left = demand.deadline - self._clock.time()
            if left > 0:
                demand.timer = self._clock.call_later(left, self._waited_at_home, demand)
                return
        self._demands.remove(demand)
        if self._may_forward_task(demand):
            self._forward_task(demand)
        else:
            demand.settled(REFUSED)

    def _may_forward_task(self, demand: Demand) -> bool:
        now = self._clock.time()
        return (
            self._parent is not None
            and self._task_tokens > 0
            and demand.deadline > now
            and self._limit.allows(now)
        )

    def _forward_task(self, demand: Demand) -> None:
        assert self._parent is not None  # noqa: S101 - whoever calls has looked
        self._task_tokens -= 1
        self._counters.task_forwards += 1
        network = self._settings.network_seconds
        at_parent = Demand(
            demand.task,
            stored=demand.stored,
            from_child=True,
            # So that the answer is back when the time is over.
            deadline=demand.deadline - network,
            settled=lambda taken: _later(self._clock, network, self._task_answered, demand, taken),
        )
        self._clock.call_later(network, self._parent._offer, at_parent)  # noqa: SLF001

    def _task_answered(self, demand: Demand, taken: bool) -> None:
        self._task_tokens += 1
        if demand is self._head and not taken:
            demand.deadline = math.inf
            self._head_listens(demand)
        else:
            demand.settled(taken)
        if self._head_wants_token and self._task_tokens:
            self._head_seeks_token()

    def _write(self, task: Task) -> None:
        self._counters.stored += 1
        self._writing += 1
        task.stored = True
        self._clock.call_later(self._settings.store_write_seconds, self._written, task)

    def _written(self, task: Task) -> None:
        self._writing -= 1
        self.backlog.append(task)
        self._dispatch()

    # The dispatcher of the backlog.

    def _dispatch(self) -> None:
        # A loop and a guard, where plain recursion would be as deep as there are polls.
        if self._dispatching:
            return
        self._dispatching = True
        while self._head is None and self.backlog:
            self._head = Demand(
                self.backlog.popleft(),
                stored=True,
                from_child=False,
                deadline=math.inf,
                settled=self._head_taken,
            )
            self._offer(self._head)
        self._dispatching = False

    def _head_taken(self, taken: bool) -> None:  # noqa: ARG002 - it listens until it is taken
        self._head = None
        self._head_wants_token = False
        self._dispatch()

    def _head_seeks_token(self) -> None:
        head = self._head
        self._head_wants_token = False
        if head is None or head.reserved or self._parent is None:
            return
        if head.timer is not None:
            # A poll refused it while it wanted a token: it listens again, and its turn is now.
            head.timer.cancel()
            head.timer = None
        now = self._clock.time()
        if not self._task_tokens:
            self._head_wants_token = True
            return
        head.retry_at = now + self._settings.backlog_forward_seconds
        if not self._limit.allows(now):
            head.timer = self._clock.call_later(
                self._settings.backlog_forward_seconds, self._waited_at_home, head
            )
            return
        self._demands.remove(head)
        head.deadline = head.retry_at
        self._forward_task(head)

    def _head_listens(self, head: Demand) -> None:
        """It is back from the parent, without a poll."""
        if self._polls:
            self._pair(head, self._polls.popleft())
            return
        self._demands.append(head)
        wait = max(head.retry_at - self._clock.time(), self._settings.local_wait_seconds)
        head.timer = self._clock.call_later(wait, self._waited_at_home, head)

    # Polls.

    def poll(self, supply: Supply) -> None:
        """A poll arrives, from a client or from a child."""
        if supply.over:
            return  # withdrawn while it was on its way
        if self._demands:
            self._pair(self._demands.popleft(), supply)
            return
        left = supply.deadline - self._clock.time()
        if left <= 0:
            self._end(supply)
            return
        supply.listening = True
        self._polls.append(supply)
        if self._parent is not None and self._settings.local_wait_seconds < left:
            supply.timer = self._clock.call_later(
                self._settings.local_wait_seconds, self._poll_seeks_token, supply
            )
        else:
            supply.timer = self._clock.call_later(left, self._end, supply)

    def withdraw(self, supply: Supply) -> None:
        """A child's poll is no longer wanted; if it was just matched, the child will refuse."""
        if not supply.over:
            self._stop(supply)

    def _poll_seeks_token(self, supply: Supply) -> None:
        left = max(0.0, supply.deadline - self._clock.time())
        supply.timer = self._clock.call_later(left, self._end, supply)
        if self._poll_tokens:
            self._forward_poll(supply)
        else:
            self._polls_wanting_token.append(supply)

    def _forward_poll(self, supply: Supply) -> None:
        assert self._parent is not None  # noqa: S101 - whoever calls has looked
        self._poll_tokens -= 1
        self._counters.poll_forwards += 1
        network = self._settings.network_seconds
        at_parent = Supply(
            supply.deadline - network,
            lambda task, answer: _later(
                self._clock, network, self._handed_over, supply, at_parent, task, answer
            ),
            lambda: _later(self._clock, network, self._parent_was_empty, supply, at_parent),
        )
        supply.forwarded = at_parent
        if not self._settings.listen_at_home:
            self._unlist(supply)
        self._clock.call_later(network, self._parent.poll, at_parent)

    def _handed_over(
        self, supply: Supply, at_parent: Supply, task: Task, answer: Callable[[bool], None]
    ) -> None:
        """The parent found a task for a poll from here."""
        network = self._settings.network_seconds
        if supply.forwarded is at_parent:
            supply.forwarded = None
            self._poll_token_back()
        if supply.over:
            if not self._polls:
                self._counters.refusals += 1
                self._clock.call_later(network, answer, REFUSED)
                return
            # Taken at home meanwhile; but another one is waiting here.
            supply = self._polls.popleft()
        self._stop(supply)
        supply.deliver(task, lambda taken: _later(self._clock, network, answer, taken))

    def _parent_was_empty(self, supply: Supply, at_parent: Supply) -> None:
        if supply.forwarded is at_parent:
            supply.forwarded = None
            self._poll_token_back()
        if not supply.over and not supply.listening:
            self._end(supply)

    def _end(self, supply: Supply) -> None:
        if not supply.over:
            self._stop(supply)
            supply.empty()

    def _stop(self, supply: Supply) -> None:
        """It takes nothing any more, neither here nor at the parent."""
        supply.over = True
        self._unlist(supply)
        if supply.forwarded is not None and self._parent is not None:
            at_parent, supply.forwarded = supply.forwarded, None
            self._clock.call_later(self._settings.network_seconds, self._parent.withdraw, at_parent)
            self._poll_token_back()

    def _unlist(self, supply: Supply) -> None:
        if supply.listening:
            supply.listening = False
            if supply in self._polls:
                self._polls.remove(supply)
        if supply.timer is not None:
            supply.timer.cancel()
            supply.timer = None

    def _poll_token_back(self) -> None:
        self._poll_tokens += 1
        while self._polls_wanting_token and self._poll_tokens:
            supply = self._polls_wanting_token.popleft()
            if not supply.over:
                self._forward_poll(supply)

    # The match.

    def _pair(self, demand: Demand, supply: Supply) -> None:
        """Give a task to a poll; both have left their queues."""
        if demand.timer is not None and demand is self._head:
            demand.timer.cancel()
            demand.timer = None
        demand.reserved = True
        self._stop(supply)
        supply.deliver(demand.task, lambda taken: self._answered(demand, taken))

    def _answered(self, demand: Demand, taken: bool) -> None:
        demand.reserved = False
        if taken:
            if demand.timer is not None:
                demand.timer.cancel()
            demand.settled(TAKEN)
        elif demand is self._head:
            self._head_listens(demand)
        elif self._polls:
            self._pair(demand, self._polls.popleft())
        elif demand.expired:
            # It was due meanwhile: what it would have done then, it does now.
            demand.expired = False
            self._demands.append(demand)
            self._waited_at_home(demand)
        elif demand.timer is None:
            self._offer(demand)
        else:
            self._demands.appendleft(demand)


def _later(clock: Clock, delay: float, callback: Callable[..., object], *args: object) -> None:
    clock.call_later(delay, callback, *args)
