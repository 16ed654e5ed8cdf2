"""A task's payload, made readable: msgpack as JSON, anything else as hexadecimal digits.

Payloads are the user's. They may hold values that JSON cannot express (`client/plain_values.py`),
and characters that would move the cursor of a terminal; neither may keep a person from seeing the
rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from maitred.cli.output import json_text
from maitred.client.plain_values import plain_body

if TYPE_CHECKING:
    from maitred.protocol.tasks import Failure


WITHHELD: Final = {
    "permission": "(needs the permission `reveal`)",
    "size": "(too large for a list: `maitred admin task show`)",
    "unknown": "(not shown: no worker has said which arguments are hidden)",
    "unreadable": "(not msgpack)",
    "forgotten": "(no longer kept)",
}
"""Why private data of a task is not shown, in words."""


class Encoded(NamedTuple):
    """A payload as a value that JSON can express."""

    value: object
    encoding: Literal["msgpack", "hex"]

    def text(self) -> str:
        """Return the payload for people, with control characters escaped as in JSON."""
        if self.encoding == "hex":
            return str(self.value)
        return json_text(self.value)


def payload_of(payload: bytes) -> Encoded:
    """Decode the msgpack of a task's arguments; show other bytes in hexadecimal."""
    try:
        return Encoded(plain_body(payload), "msgpack")
    except ValueError:
        return Encoded(payload.hex(" "), "hex")


def failure_of(body: bytes) -> Failure | None:
    """Return why the task failed; None if the record of it cannot be decoded."""
    from msgspec import DecodeError, msgpack

    from maitred.protocol.tasks import Failure

    try:
        failure = msgpack.decode(body, type=Failure)
    except (DecodeError, ValueError, RecursionError):
        return None
    return Failure(*map(_printable, (failure.kind, failure.message, failure.traceback)))


def _printable(text: str) -> str:
    """Return text that a worker wrote, without control characters except line ends and tabs."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
