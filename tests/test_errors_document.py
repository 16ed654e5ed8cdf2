"""docs/errors.md lists every error as its class has it.

    python -m tests.test_errors_document

writes the table of the page anew.
"""

from __future__ import annotations

from pathlib import Path

from maitred import errors
from maitred.errors import MaitredError, RequestOutcome, RetryAdvice
from maitred.gateway.http.statuses import STATUSES
from maitred.protocol.refusals import CLASSES

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
COMMAND = "python -m tests.test_errors_document"
BEGIN = f"<!-- The table below is written by a program: {COMMAND} -->\n"


def table() -> str:
    """Every class of the taxonomy, each below its parent."""
    lines = [
        "| code | class | below | outcome | retry | HTTP | what happened |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(kind) for kind in [*_family(MaitredError), errors.RemoteError]]
    return "\n".join(lines) + "\n"


def _family(kind: type[MaitredError]) -> list[type[MaitredError]]:
    below = [one for one in CLASSES.values() if one.__bases__[0] is kind]
    return [kind, *(found for one in below for found in _family(one))]


def _row(kind: type[MaitredError]) -> str:
    said = " ".join((kind.__doc__ or "").split()).replace("|", "&#124;")
    parent = "" if kind is MaitredError else f"`{kind.__bases__[0].__name__}`"
    status = next(STATUSES[one] for one in kind.__mro__ if one in STATUSES)
    return (
        f"| `{kind.code}` | `{kind.__name__}` | {parent} | {kind.outcome} "
        f"| {kind.retry} | {status} | {said} |"
    )


def page() -> tuple[str, str]:
    """The part that people wrote, and the part that the program wrote."""
    people, marker, written = PAGE.read_text().partition(BEGIN)
    assert marker, f"{PAGE.name} has lost the line {BEGIN!r}"
    return people + marker, written.removeprefix("\n")


def test_the_page_has_every_error_as_its_class_has_it() -> None:
    assert page()[1] == table(), f"docs/errors.md is not up to date; run: {COMMAND}"


def test_the_table_has_each_error_once() -> None:
    rows = table().splitlines()[2:]
    assert len(rows) == len(CLASSES) + 1
    for code in [*CLASSES, errors.RemoteError.code]:
        assert sum(row.startswith(f"| `{code}` |") for row in rows) == 1


def test_the_page_explains_every_outcome_and_every_advice() -> None:
    for word in [*RequestOutcome, *RetryAdvice]:
        assert f"| `{word}` |" in page()[0]


if __name__ == "__main__":
    PAGE.write_text(page()[0] + "\n" + table())
