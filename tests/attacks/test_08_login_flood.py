"""Item 8: a flood of wrong secrets does not lock out users who are not remembered yet.

Nothing here depends on how long a verification takes: at the listeners a turnstile lets
verifications through one by one, and the share of logins under two seconds is counted in virtual
time.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from base64 import b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec import json

from maitred.errors import Overloaded, Unauthenticated
from maitred.protocol.frames import Opcode
from maitred.security.authenticator import VERIFIED_AT_ONCE
from maitred.security.login_limits import LoginLimits
from maitred.security.login_queue import LoginQueue
from maitred.settings import GatewaySettings, Limits, Node, User
from tests.gateway.fakes import Caller, open_door, query
from tests.node.in_process import in_a_loop, node, until
from tests.node.raw import RawClient, credentials, error_in, startup
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from maitred.security.authenticator import Authenticator
    from maitred.security.directory import Identity

    Listening = Callable[[Path, Limits], AbstractAsyncContextManager["Listener"]]

USERS = {
    name: User(secret=cheaply(f"{name}'s"), permissions={"*": ["admin"]})
    for name in ("alice", "bob", "carol")
}
HOME, AWAY = "127.0.0.1", "127.0.0.2"


class Turnstile:
    """Lets verifications through when the test says so, and knows their order."""

    def __init__(self, authenticator: Authenticator) -> None:
        self.order: list[str] = []
        self.authenticator = authenticator
        self._through = threading.Semaphore(0)
        self._verify = authenticator.users.authenticate
        authenticator.users.authenticate = self._held  # type: ignore[method-assign]

    def _held(self, name: str, secret: str) -> Identity:
        self.order.append(name)
        assert self._through.acquire(timeout=30)
        return self._verify(name, secret)

    def let_through(self, count: int = 1) -> None:
        self._through.release(count)

    async def flooded(self, waiting: int) -> None:
        """Until all threads are busy and so many wait."""
        await until(
            lambda: len(self.order) == VERIFIED_AT_ONCE and self.authenticator.waiting == waiting
        )


class Listener(NamedTuple):
    """A way in, native or HTTP."""

    turnstile: Turnstile
    attempt: Callable[[str, str, str], asyncio.Task[str]]
    """From an address, in a name, with a secret: the code of the refusal, or `in`."""


@asynccontextmanager
async def native(place: Path, limits: Limits) -> AsyncIterator[Listener]:
    async with node(place, users=USERS, limits=limits) as running:
        port = running.own_ports[0]

        async def attempt(host: str, user: str, secret: str) -> str:
            client = RawClient(
                *await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            )
            try:
                await client.ask(startup())
                client.write(credentials(user, secret))
                answer = await client.frame()
                if answer.opcode == Opcode.AUTH_SUCCESS:
                    return "in"
                return error_in(answer).code
            finally:
                client.reset()

        with attempts(attempt, running.shard.authenticator) as listener:
            yield listener


@asynccontextmanager
async def http(_place: Path, limits: Limits) -> AsyncIterator[Listener]:
    settings = Node(gateway=GatewaySettings(port=0), users=USERS, limits=limits)
    async with open_door(settings) as opened:

        async def attempt(host: str, user: str, secret: str) -> str:
            caller = Caller(
                *await asyncio.open_connection("127.0.0.1", opened.port, local_addr=(host, 0))
            )
            try:
                pair = b64encode(f"{user}:{secret}".encode()).decode()
                caller.send(query("echo", b"[1]", f"Authorization: Basic {pair}"))
                answer = await caller.answer()
                if answer.status == 200:
                    return "in"
                if answer.status == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                return str(json.decode(answer.body)["error"]["code"])
            finally:
                caller.close()

        with attempts(attempt, opened.gateway.guard.authenticator) as listener:
            yield listener


class attempts:  # noqa: N801 - reads as a function
    """Attempts as tasks, which all end with the test."""

    def __init__(
        self,
        attempt: Callable[[str, str, str], Coroutine[Any, Any, str]],
        authenticator: Authenticator,
    ) -> None:
        self._attempt = attempt
        self._turnstile = Turnstile(authenticator)
        self._tasks: list[asyncio.Task[str]] = []

    def _begin(self, host: str, user: str, secret: str) -> asyncio.Task[str]:
        task = asyncio.get_running_loop().create_task(self._attempt(host, user, secret))
        self._tasks.append(task)
        return task

    def __enter__(self) -> Listener:
        return Listener(self._turnstile, self._begin)

    def __exit__(self, *_: object) -> None:
        self._turnstile.let_through(1_000)
        for task in self._tasks:
            task.cancel()


LISTENERS = pytest.mark.parametrize("listen", [native, http])


async def ended(task: asyncio.Task[str]) -> str:
    async with asyncio.timeout(30):
        return await task


@LISTENERS
@in_a_loop
async def test_a_flood_from_elsewhere_costs_one_turn(listen: Listening, tmp_path: Path) -> None:
    async with listen(tmp_path, Limits()) as (turnstile, attempt):
        for number in range(60):
            attempt(AWAY, f"user {number % 7}", f"wrong {number}")
        await turnstile.flooded(58)
        mine = attempt(HOME, "alice", "alice's")
        await until(lambda: turnstile.authenticator.waiting == 59)
        turnstile.let_through(VERIFIED_AT_ONCE + 2)
        assert await ended(mine) == "in"
        assert turnstile.order.index("alice") <= VERIFIED_AT_ONCE + 1


@LISTENERS
@in_a_loop
async def test_a_flood_in_one_name_behind_the_same_address(
    listen: Listening, tmp_path: Path
) -> None:
    async with listen(tmp_path, Limits(failures_per_user=1_000)) as (turnstile, attempt):
        for number in range(60):
            attempt(HOME, "bob", f"wrong {number}")
        await turnstile.flooded(58)
        mine = attempt(HOME, "alice", "alice's")
        await until(lambda: turnstile.authenticator.waiting == 59)
        turnstile.let_through(VERIFIED_AT_ONCE + 2)
        assert await ended(mine) == "in"
        assert turnstile.order.index("alice") <= VERIFIED_AT_ONCE + 1


@LISTENERS
@in_a_loop
async def test_a_full_queue_makes_room_for_whoever_has_less(
    listen: Listening, tmp_path: Path
) -> None:
    limits = Limits(verifications=10, verifications_per_address=8, failures_per_user=1_000)
    async with listen(tmp_path, limits) as (turnstile, attempt):
        flood = [attempt(AWAY, "bob", f"wrong {number}") for number in range(20)]
        await turnstile.flooded(5)
        await until(lambda: sum(task.done() for task in flood) == 13)
        refused = {await task for task in flood if task.done()}
        assert refused == {"overloaded"}
        mine = [attempt(HOME, name, f"{name}'s") for name in USERS]
        await until(lambda: turnstile.authenticator.waiting == 8)
        turnstile.let_through(20)
        assert [await ended(task) for task in mine] == ["in"] * 3


@LISTENERS
@in_a_loop
async def test_failing_in_a_name_locks_out_nobody_elsewhere(
    listen: Listening, tmp_path: Path
) -> None:
    async with listen(tmp_path, Limits(failures_per_name=15)) as (turnstile, attempt):
        turnstile.let_through(1_000)
        codes = [await ended(attempt(AWAY, "alice", f"wrong {number}")) for number in range(30)]
        assert codes == ["unauthenticated"] * 10 + ["too-many-failures"] * 20
        assert len(turnstile.order) == 10, "who is refused costs no verification"
        for number in range(10):
            await ended(attempt("127.0.0.3", "alice", f"guess {number}"))
        assert await ended(attempt(AWAY, "alice", "alice's")) == "too-many-failures"
        assert await ended(attempt(AWAY, "bob", "bob's")) == "in"
        assert await ended(attempt(HOME, "alice", "alice's")) == "in"
        # Remembered now, so that even where it was guessed it passes.
        assert await ended(attempt(AWAY, "alice", "alice's")) == "in"


@LISTENERS
@in_a_loop
async def test_names_that_nobody_has_are_limited_in_the_same_way(
    listen: Listening, tmp_path: Path
) -> None:
    async with listen(tmp_path, Limits(failures_per_user=3)) as (turnstile, attempt):
        turnstile.let_through(1_000)
        heard = {
            name: [
                await ended(attempt(AWAY, name, f"wrong {number}")) for number in (1, 2, 3, 4, 1)
            ]
            for name in ("alice", "nobody")
        }
        assert heard["alice"] == heard["nobody"]
        assert turnstile.order == ["alice"] * 3 + ["nobody"] * 3


@LISTENERS
@in_a_loop
async def test_a_remembered_secret_passes_at_once(listen: Listening, tmp_path: Path) -> None:
    async with listen(tmp_path, Limits()) as (turnstile, attempt):
        turnstile.let_through()
        assert await ended(attempt(HOME, "alice", "alice's")) == "in"
        turnstile.order.clear()
        for number in range(20):
            attempt(HOME, f"user {number}", "wrong")
        await turnstile.flooded(18)
        assert await ended(attempt(HOME, "alice", "alice's")) == "in"
        assert "alice" not in turnstile.order


@LISTENERS
@in_a_loop
async def test_the_same_wrong_secret_again_costs_nothing_and_counts_once(
    listen: Listening, tmp_path: Path
) -> None:
    """A fleet with an old secret, whose operator brings the new one."""
    async with listen(tmp_path, Limits(failures_per_user=2)) as (turnstile, attempt):
        turnstile.let_through(1_000)
        codes = {await ended(attempt(HOME, "alice", "old")) for _ in range(30)}
        assert codes == {"unauthenticated"}
        assert turnstile.order == ["alice"]
        assert await ended(attempt(HOME, "alice", "alice's")) == "in"


@in_a_loop
async def test_a_caller_who_left_makes_room(tmp_path: Path) -> None:
    """Those who ask and go may not keep the queue of their address full."""
    limits = Limits(verifications_per_address=5)
    async with native(tmp_path, limits) as (turnstile, attempt):
        flood = [attempt(HOME, f"user {number}", "wrong") for number in range(7)]
        await turnstile.flooded(5)
        for task in flood:
            task.cancel()
        await until(lambda: turnstile.authenticator.waiting == 0)
        mine = attempt(HOME, "alice", "alice's")
        turnstile.let_through(3)
        assert await ended(mine) == "in"
        assert turnstile.order[2:] == ["alice"]


@in_a_loop
async def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """On HTTP as on the native port, a login takes no longer than a handshake may."""
    async with http(tmp_path, Limits(handshake_seconds=0.1)) as (turnstile, attempt):
        for number in range(2):
            attempt(AWAY, "bob", f"wrong {number}")
        await until(lambda: len(turnstile.order) == VERIFIED_AT_ONCE)
        assert await ended(attempt(HOME, "alice", "alice's")) == "overloaded"
        assert turnstile.authenticator.waiting == 0
        assert "alice" not in turnstile.order


# In virtual time: the same decisions, minutes of floods in a moment


class Try(NamedTuple):
    network: str
    user: str
    began: float
    number: int


VERIFY_SECONDS = 0.08
"""One verification on a machine that is twice as slow as ours."""


def share_in_time(flood: Iterator[Try], legitimate: list[Try], seconds: float) -> float:
    """The share of the legitimate logins, each tried once, that are in within two seconds."""
    limits = Limits()
    failures = LoginLimits(limits)
    queue: LoginQueue[Try] = LoginQueue(
        limits.verifications, limits.verifications_per_address, failures.standing
    )
    honest = set(legitimate)
    arrivals = heapq.merge(flood, legitimate, key=lambda one: one.began)
    free_at = [0.0] * VERIFIED_AT_ONCE
    taken: dict[Try, float] = {}

    def serve(until_moment: float) -> None:
        """Verify, with as many threads as there are, what is verified until then."""
        while min(free_at) <= until_moment:
            now = max(heapq.heappop(free_at), last)
            one = queue.take(now)
            if one is None:
                heapq.heappush(free_at, now)
                return
            try:
                failures.check(one.network, one.user, now)
            except Overloaded:
                heapq.heappush(free_at, now)
                continue
            heapq.heappush(free_at, now + VERIFY_SECONDS)
            if one in honest:
                taken[one] = now + VERIFY_SECONDS - one.began
                failures.succeeded(one.network, one.user)
            else:
                failures.failed(one.network, one.user, now + VERIFY_SECONDS)

    last = 0.0
    for one in arrivals:
        if one.began > seconds:
            break
        serve(one.began)
        last = one.began
        try:
            failures.check(one.network, one.user, one.began)
            queue.add(one, one.began)
        except Overloaded:
            continue
        serve(one.began)
    last = seconds
    serve(seconds + 10)
    return sum(1 for wait in taken.values() if wait < 2.0) / len(legitimate)


def flood(per_second: int, networks: int, names: int) -> Iterator[Try]:
    chance = random.Random(f"{per_second} {networks} {names}")
    moment, number = 0.0, 0
    while True:
        moment += chance.expovariate(per_second)
        number += 1
        yield Try(
            f"10.0.{chance.randrange(networks)}", f"{chance.randrange(names)}", moment, number
        )


@pytest.mark.parametrize(
    ("networks", "names"),
    [(1, 1), (1, 20), (1, 1_000_000), (50, 1), (50, 1_000_000), (300, 1_000_000)],
)
def test_users_from_elsewhere_get_in_within_two_seconds(networks: int, names: int) -> None:
    """A thousand attempts a second, and a new user from a new address every half a second."""
    seconds = 20
    users = [Try(f"192.0.2.{n}", f"user {n}", n / 2, -n) for n in range(1, 2 * seconds)]
    assert share_in_time(flood(1_000, networks, names), users, seconds) >= 0.95


def test_a_flood_from_more_networks_than_may_wait_displaces_itself() -> None:
    limits = Limits()
    failures = LoginLimits(limits)
    most = limits.verifications
    queue: LoginQueue[Try] = LoginQueue(most, limits.verifications_per_address, failures.standing)
    for number in range(3 * most):
        queue.add(Try(f"10.0.{number}", "alice", 0.0, number), 0.0)
    assert len(queue) == most
    honest = Try(HOME, "bob", 0.0, -1)
    displaced = queue.add(honest, 0.0)
    assert displaced is not None
    assert displaced.network.startswith("10.0.")
    assert queue.take(0.0) is honest


@pytest.mark.parametrize("names", [1, 20])
def test_users_behind_the_same_address_get_in_within_two_seconds(names: int) -> None:
    """The flood is in some names, the users have others."""
    seconds = 20
    users = [Try("10.0.0", f"user {n}", n / 2, -n) for n in range(1, 2 * seconds)]
    assert share_in_time(flood(1_000, 1, names), users, seconds) >= 0.95


def test_guesses_in_one_name_stay_few_however_many_addresses_there_are() -> None:
    limits = Limits()
    failures = LoginLimits(limits)
    verified = 0
    for one in flood(2_000, 200, 1):
        if one.began > 20:
            break
        try:
            failures.check(one.network, one.user, one.began)
        except Overloaded:
            continue
        failures.failed(one.network, one.user, one.began)
        verified += 1
    # A hundred at first, and then one guess of each address when its last failure is forgiven.
    assert verified <= limits.failures_per_name + 200 * (20 / limits.failure_seconds + 1)
    failures.check("elsewhere", "0", 20.0)


def test_unauthenticated_is_the_one_answer() -> None:
    """No refusal says whether a user exists: those of limits are the same for every name."""
    from maitred.security.directory import wrong_secret

    assert isinstance(wrong_secret(), Unauthenticated)
    said = set()
    for name in ("alice", "nobody"):
        failures = LoginLimits(Limits(failures_per_user=1))
        failures.failed("here", name, 0.0)
        with pytest.raises(Overloaded) as refused:
            failures.check("here", name, 1.0)
        said.add(str(refused.value))
    assert len(said) == 1
