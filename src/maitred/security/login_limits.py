"""Limits on wrong secrets: of one network in one name, of one network, and in one name.

The three limits do different things, because each of them could be turned against users:

- **One network, one name**: further attempts are refused, without verifying, until a failure is
  forgiven. That hits only the network that failed in this name, so an attacker cannot lock a user
  out from elsewhere.
- **One network, any name**: the network's standing gets worse. Its attempts are still verified, but
  wait behind those of other networks (`login_queue.py`). They are not refused: a thousand users may
  share the network's address, of a translator or of a proxy, with the one who fails.
- **One name, any network**: a guess that is spread over many networks. A network that has not
  failed in this name gets its first attempt as always; one that has failed already is refused.
  So the user can log in from any network that does not guess, and each network has one guess,
  not ten.

A repetition of a secret that is known to be wrong teaches an attacker nothing and costs no
verification (`directory.py`), so it is not counted: a fleet that restarts with an old secret does
not use up the attempts of those who have the new one.

Each count is a token bucket that is one number: the moment at which it will be full again. A table
forgets the buckets that are full first, then those that are nearest to it, so an attacker who fills
it with names or networks forgets his own small offences and not his large ones. He cannot fill it,
in fact: an entry is a verification that failed, and a process does some fifty of those a second.

Standing recovers more slowly than the right to try: an attacker with a thousand networks has three
of them in good standing every second then, and verifying those is little work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.errors import TooManyFailures
from maitred.security.login_queue import Standing

if TYPE_CHECKING:
    from collections.abc import Hashable

    from maitred.settings import Limits

_Key = TypeVar("_Key", bound="Hashable")

BUCKETS_MAX: Final = 20_000
"""Most buckets of one table, some 200 bytes each. At fifty failures a second, of which each is
forgiven after five minutes, 15,000 are in use."""


class FailureTable(Generic[_Key]):
    """Counts failures by key, and forgives one of them every `forgiven_seconds`."""

    def __init__(self, burst: int, forgiven_seconds: float, most: int = BUCKETS_MAX) -> None:
        self._seconds = forgiven_seconds
        self._allowed = (burst - 1) * forgiven_seconds
        self._most = most
        self._full_at: dict[_Key, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def failed(self, key: _Key, now: float) -> None:
        """Count a failure of this key."""
        self._full_at[key] = max(self._full_at.get(key, now), now) + self._seconds
        if len(self._full_at) > self._most:
            self._forget(now)

    def wait_seconds(self, key: _Key, now: float) -> float:
        """Return the seconds until another attempt is within the limit; 0 if it is now."""
        return max(0.0, self._full_at.get(key, now) - now - self._allowed)

    def has_failed(self, key: _Key, now: float) -> bool:
        """Whether the key has a failure that is not yet forgiven."""
        return self._full_at.get(key, now) > now

    def forget(self, key: _Key) -> None:
        """Forgive all failures of the key."""
        self._full_at.pop(key, None)

    def _forget(self, now: float) -> None:
        """Drop at least half of the entries, so that the cost of sorting is spread over as many
        failures."""
        kept = sorted((at, key) for key, at in self._full_at.items() if at > now)
        self._full_at = {key: at for at, key in kept[-(self._most // 2) :]}


class LoginLimits:
    """The failed logins that one process has seen, and the limits that follow from them."""

    def __init__(self, limits: Limits) -> None:
        seconds = limits.failure_seconds
        self._seconds = seconds
        self._here: FailureTable[tuple[str, str]] = FailureTable(limits.failures_per_user, seconds)
        self._networks: FailureTable[str] = FailureTable(
            limits.failures_per_address, limits.address_failure_seconds
        )
        self._names: FailureTable[str] = FailureTable(limits.failures_per_name, seconds)

    def check(self, network: str, name: str, now: float) -> None:
        """Raise `TooManyFailures` if this attempt must not be verified now."""
        wait = self._here.wait_seconds((network, name), now)
        if not wait and self._here.has_failed((network, name), now):
            wait = min(self._names.wait_seconds(name, now), self._seconds)
        if wait:
            raise TooManyFailures(
                "Too many wrong secrets came from your address in the name of this user.",
                remedy="Check the secret, and try again later.",
                retry_after=wait,
            )

    def standing(self, network: str, now: float) -> Standing:
        """Return the network's standing, which decides whose attempts go first."""
        if self._networks.wait_seconds(network, now):
            return Standing.SUSPECT
        return Standing.MIXED if self._networks.has_failed(network, now) else Standing.GOOD

    def failed(self, network: str, name: str, now: float) -> None:
        """Count an attempt with a wrong secret."""
        self._here.failed((network, name), now)
        self._networks.failed(network, now)
        self._names.failed(name, now)

    def succeeded(self, network: str, name: str) -> None:
        """Forgive the failures of this network in this name. Its other failures still count: an
        attacker may have a valid user."""
        self._here.forget((network, name))
