"""The one taxonomy of errors, for the library, the command line and every door.

An error has a code that programs may compare, a plain sentence for people and, where one exists,
a remedy. Codes are part of the interface: they are added, never renamed.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


class MaitredError(Exception):
    """Whatever maitred refuses or fails at; catch this to catch them all."""

    code: ClassVar[str] = "error"

    def __init__(self, sentence: str, *, remedy: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}" if self.remedy else self.sentence


class InvalidArgument(MaitredError, ValueError):
    """The caller gave something that can never be right."""

    code = "invalid-argument"


class InvalidName(InvalidArgument):
    """A namespace, queue or host name that is empty, too long, or would make a key ambiguous."""

    code = "invalid-name"


class InvalidPartition(InvalidArgument):
    """A partition number, count, batch size or tree degree out of its range."""

    code = "invalid-partition"


class UnsafePartitionChange(InvalidArgument):
    """A change of partition counts that could strand tasks."""

    code = "unsafe-partition-change"


class InvalidGradualChange(InvalidArgument):
    """A gradual change whose times or values make no sense."""

    code = "invalid-gradual-change"


class InvalidShards(InvalidArgument):
    """A shard count or ignore_msb out of its range."""

    code = "invalid-shards"


class UnknownChoice(InvalidArgument):
    """A name that is in no list of choices; the sentence names the nearest one that is."""

    code = "unknown-choice"

    @classmethod
    def named(cls, what: str, name: str, known: Iterable[str]) -> Self:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(names)}."
        return cls(f"There is no {what} called {name!r}.", remedy=hint)


class UnknownAlgorithm(UnknownChoice):
    """No selector, placement or scenario has that name."""

    code = "unknown-algorithm"


class UnknownCommand(UnknownChoice):
    """The command line has no such command."""

    code = "unknown-command"


class NoHosts(InvalidArgument):
    """A lookup in a ring without hosts."""

    code = "no-hosts"


class DuplicateHost(InvalidArgument):
    """A host that is in the ring already."""

    code = "duplicate-host"


class UnknownHost(InvalidArgument):
    """A host that is not in the ring."""

    code = "unknown-host"
