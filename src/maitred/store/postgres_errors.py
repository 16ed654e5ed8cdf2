"""Translate PostgreSQL's errors, and missing answers, into maitred's errors.

Of the location only hosts and ports are shown, and no error message about it: it may hold a
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
    asyncpg.PostgresSystemError,  # for example its disk
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,  # by the server, at our own statement_timeout
    asyncpg.TransactionRollbackError,  # for example deadlocks
    asyncpg.ReadOnlySQLTransactionError,  # a standby, after a failover
    asyncpg.InsufficientPrivilegeError,
    *NOT_LET_IN,
)
"""After these errors it is certain that the server has rolled back."""

DEFAULT_PORT: Final = 5432

_SILENCE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""After these errors the server may have executed the statement."""


class DamagedPageError(StoreUnavailable):
    """The server had an internal error, mostly a damaged page. It has done nothing, and may be able
    to read other rows."""


@contextmanager
def translated(*, commit: bool = False) -> Iterator[None]:
    """Raise maitred's errors in place of asyncpg's; `commit` says that a commit is in progress."""
    try:
        yield
    except asyncpg.ClientConfigurationError:
        raise  # only while starting; the message may hold the location
    except asyncpg.DiskFullError as problem:
        raise StoreFull("The database server has no room left.", remedy=_FULL) from problem
    except asyncpg.InternalServerError as problem:
        raise DamagedPageError(f"The database server refuses: {_said(problem)}.") from problem
    except asyncpg.TargetServerAttributeNotMatched as problem:
        raise StoreUnavailable(
            "No database server that answers is a primary.",
            remedy="Wait for the failover, or check the hosts in `store`.",
        ) from problem
    except _DONE_NOTHING as problem:
        raise StoreUnavailable(f"The database server refuses: {_said(problem)}.") from problem
    except _SILENCE as problem:
        raise _lost(problem, commit=commit) from problem


@contextmanager
def translated_at_start(location: str) -> Iterator[None]:
    """Do the same while a store is opened; raise `CannotStart` if waiting cannot help."""
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
            f"The database server refused the login: {_said(problem)}.",
            remedy="Check the user, the password and the database in the store's location.",
        ) from None
    except (asyncpg.ClientConfigurationError, ValueError):
        raise CannotStart(
            "The store's location cannot be understood.",
            remedy="Write it as postgresql://user:password@host:5432/database.",
        ) from None


def _unreached(location: str, problem: BaseException) -> StoreUnavailable:
    # The system's message may hold the address that a host name resolves to, which is no secret.
    silent = isinstance(problem, TimeoutError)
    said = "it did not answer in time" if silent else _said(problem)
    return StoreUnavailable(
        f"The database server{_place(location)} cannot be reached: {said}.",
        remedy="Check whether it runs, and the address in `store`.",
    )


def _place(location: str) -> str:
    """Return the location's hosts and ports; never a user, a password or a database."""
    parts = urlsplit(location)
    if "@" in location.partition(parts.netloc)[2]:
        return ""  # a user or password is not quoted, so an apparent host may be part of it
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
