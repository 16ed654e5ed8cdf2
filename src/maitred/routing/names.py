"""Check names once, where they enter, so that no route is ever ambiguous.

Routing keys are joined with colons (`namespace:queue:type`, `namespace:queue:batch:type`) and the
partitions of a queue are named `/_sys/<queue>/<n>`. A colon inside a name, or a queue that starts
with `/_sys/`, could therefore be read as another queue's key: queue `q:1` would share the key of
batch 1 of queue `q`. Such names are refused here, and all other code may rely on that.
Slashes elsewhere are harmless, and so is any letter of any script.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from maitred.errors import InvalidName

NAME_MAX_BYTES = 255
"""The longest namespace, queue or host name in UTF-8 bytes. Such a name fits a file name and a
metric's label, and its length fits one byte."""

SYSTEM_PREFIX = "/_sys/"
"""The prefix of the name of every partition but the root."""

QUEUE_TYPE_MAX = 2**31 - 1
"""The largest queue type: it fits a signed 32-bit integer."""

TASKS: Final = 1
"""The queue type of durable tasks, and of the queries that the same handlers answer."""


class _QueueId(NamedTuple):
    namespace: str
    queue: str
    type: int


class QueueId(_QueueId):
    """One queue: its namespace, its name, and its type as a number.

    Every instance is checked: the constructor raises `InvalidName` with the reason.
    """

    __slots__ = ()

    def __new__(cls, namespace: str, queue: str, type: int) -> Self:  # noqa: A002 - users' word
        check_name("namespace", namespace)
        check_name("queue", queue)
        if type.__class__ is not int or not 0 <= type <= QUEUE_TYPE_MAX:
            raise InvalidName(
                f"The queue type {type!r} is not a number from 0 to {QUEUE_TYPE_MAX}."
            )
        return super().__new__(cls, namespace, queue, type)


def check_name(what: str, name: str) -> str:
    """Return the name if it can stand in a routing key, else raise `InvalidName`."""
    _check_text(what, name)
    if ":" in name:
        raise InvalidName(
            f"The {what} {name!r} has a colon, which separates the parts of a routing key."
        )
    if name.startswith(SYSTEM_PREFIX):
        raise InvalidName(
            f"The {what} {name!r} starts with {SYSTEM_PREFIX!r}, which names partitions.",
            remedy="Name the queue itself, not one of its partitions.",
        )
    return name


def check_host(address: str) -> str:
    """Return the host's address, which may have colons (`host:port`), or raise `InvalidName`."""
    _check_text("host", address)
    for separator in ",;":
        if separator in address:
            raise InvalidName(
                f"The host {address!r} has a {separator!r}, which separates hosts in a list."
            )
    return address


def check_shown_name(what: str, name: str) -> str:
    """Return a name that people read, such as a worker's, if it has no control characters.

    Control characters could change what a terminal, a log or a metric shows.
    """
    if not name.isprintable():
        raise InvalidName(
            f"The name of the {what}, {name[:60]!r}, has control characters.",
            remedy="Name it with letters, digits and punctuation.",
        )
    return name


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):  # callers without a type checker
        raise InvalidName(f"The {what} has to be text, not {text!r}.")
    if not text:
        raise InvalidName(f"The {what} is empty.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"The {what} {text!r} is not valid Unicode.") from None
    if size > NAME_MAX_BYTES:
        raise InvalidName(
            f"The {what} is {size} bytes long; at most {NAME_MAX_BYTES} are allowed.",
        )
    if not text.isprintable() or text != text.strip():
        raise InvalidName(
            f"The {what} {text!r} has control characters, or spaces at its ends.",
        )
