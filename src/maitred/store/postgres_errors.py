"""What PostgreSQL's refusals, and its silence, mean for whoever asked.

Of the location only hosts and ports are ever shown, nor anything of errors about it: it may hold a
password.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from maitred.errors import CannotStart, OutcomeUnknown, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.errors import MaitredError

_FULL: Final = "Make room on the disk of the database server; the store goes on by itself."
NOT_LET_IN: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_DONE_NOTHING: Final = (
    asyncpg.InsufficientResourcesError,  # memory, connections
    asyncpg.ProgramLimitExceededError,
    asyncpg.PostgresSystemError,  # its disk, for one
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,  # by the server, at our own statement_timeout
    asyncpg.TransactionRollbackError,  # deadlocks among them
    asyncpg.ReadOnlySQLTransactionError,  # a standby, after others have taken over
    asyncpg.InsufficientPrivilegeError,
    *NOT_LET_IN,
)
"""After these the server has rolled back, and says so."""

DEFAULT_PORT: Final = 5432

_SILENCE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""After these it may have done what it was asked."""


class DamagedPageError(StoreUnavailable):
    """The server met something that must not be, mostly a damaged page. It has done nothing, and
    may be able to read other rows."""


@contextmanager
def translated(*, commit: bool = False) -> Iterator[None]:
    """Raises ours for theirs."""
    try:
        yield
    except asyncpg.ClientConfigurationError:
        raise  # only while starting; what it says may hold the location
    except asyncpg.DiskFullError as problem:
        raise StoreFull("The database server has no room left.", remedy=_FULL) from problem
    except asyncpg.InternalServerError as problem:
        raise DamagedPageError(f"The database server refuses: {_said(problem)}.") from problem
    except _DONE_NOTHING as problem:
        raise StoreUnavailable(f"The database server refuses: {_said(problem)}.") from problem
    except _SILENCE as problem:
        raise _lost(problem, commit=commit) from problem


@contextmanager
def translated_at_start(location: str) -> Iterator[None]:
    """The same for a store that is being opened: what will not heal by itself is `CannotStart`."""
    try:
        with translated():
            yield
    except StoreUnavailable as unavailable:
        problem = unavailable.__cause__
        if isinstance(problem, OSError):
            raise _unreached(location, problem) from problem
        if not isinstance(problem, NOT_LET_IN):
            raise
        raise CannotStart(
            f"The database server does not let us in: {_said(problem)}.",
            remedy="Check the user, the password and the database in the store's location.",
        ) from None
    except (asyncpg.ClientConfigurationError, ValueError):
        raise CannotStart(
            "The store's location cannot be understood.",
            remedy="Write it as postgresql://user:password@host:5432/database.",
        ) from None


def _unreached(location: str, problem: BaseException) -> StoreUnavailable:
    # What the system says may have the address in it that a name stands for, which is no secret.
    silent = isinstance(problem, TimeoutError)
    said = "it did not answer in time" if silent else _said(problem)
    return StoreUnavailable(
        f"The database server{_place(location)} cannot be reached: {said}.",
        remedy="Check whether it runs, and the address in `store`.",
    )


def _place(location: str) -> str:
    """Its hosts and ports, as it has them; never a user, a password, a database."""
    parts = urlsplit(location)
    if "@" in location.partition(parts.netloc)[2]:
        return ""  # a user or a password that is not quoted, so what looks like a host may be none
    named = parse_qs(parts.query)
    hosts = named.get("host", [parts.netloc.rpartition("@")[2]])[-1]
    if not hosts:
        return ""
    port = named.get("port", [str(DEFAULT_PORT)])[-1]
    places = [
        host if ":" in host.rpartition("]")[2] or "," in port else f"{host}:{port}"
        for host in unquote(hosts).split(",")
    ]
    return f" at {', '.join(places)}"


def _lost(problem: BaseException, *, commit: bool) -> MaitredError:
    if isinstance(problem, TimeoutError):
        said = "The database server did not answer in time"
    else:
        said = f"The connection to the database server failed: {_said(problem)}"
    return OutcomeUnknown(f"{said}.") if commit else StoreUnavailable(f"{said}.")


def _said(problem: BaseException) -> str:
    lines = str(problem).splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__
