"""One outage is one line in the log, and one more when it is over."""

from __future__ import annotations

from random import Random

from structlog.testing import CapturingLogger

from maitred.errors import Unavailable
from maitred.settings import ClientSettings
from maitred.worker.outage import Outage

AWAY = Unavailable("Nobody is there.")


def outage() -> tuple[Outage, CapturingLogger]:
    log = CapturingLogger()
    return Outage(ClientSettings(), Random(1), log, lambda: 0.0), log


def said(log: CapturingLogger) -> list[str]:
    return [call.args[0] for call in log.calls]


def test_an_outage_is_told_once_and_its_end_too() -> None:
    told, log = outage()
    for partition in (0, 1, 0, 1):
        told.failed("mails", partition, AWAY)
    assert said(log) == ["the node does not answer; trying again"]
    told.worked("mails", 0)
    assert len(said(log)) == 1
    told.worked("mails", 1)
    assert said(log)[1:] == ["the node answers again"]


def test_another_reason_of_the_same_outage_is_told() -> None:
    told, log = outage()
    garbage = Unavailable("It answers with garbage.", remedy="Check host and port.")
    for problem in (AWAY, garbage, AWAY, garbage):
        told.failed("mails", 0, problem)
    assert [call.kwargs["error"] for call in log.calls] == [AWAY, garbage]


def test_a_partition_that_is_no_more_does_not_keep_an_outage_open() -> None:
    told, log = outage()
    told.failed("mails", 0, AWAY)
    told.failed("mails", 3, AWAY)
    told.worked("mails", 0)
    told.forget("mails", 2)
    assert said(log)[1:] == ["the node answers again"]
    told.failed("mails", 0, AWAY)
    assert said(log)[2:] == ["the node does not answer; trying again"]
