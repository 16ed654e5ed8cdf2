"""Names reach logs, terminals and metrics: none of them has control characters, and what is free
text is escaped where it is shown."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.cli.output import json_text, print_json, print_table
from maitred.errors import InvalidName, InvalidSetting, QueryFailed
from maitred.logs import logger
from maitred.protocol.frames import EVENT_STREAM
from maitred.protocol.refusals import decode_error, encode_error
from maitred.protocol.tasks import Heartbeat
from maitred.security.users import check_user
from maitred.settings import Log, User
from tests.node.in_process import in_a_loop
from tests.node.querying import SECONDS, WORKER, stage, watch
from tests.security.cheap import cheaply
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker
from tests.worker.test_queries import Desk

if TYPE_CHECKING:
    from pathlib import Path

CLEAR_SCREEN = "\x1b[2J\x1b[H"
BAD = [f"w{CLEAR_SCREEN}", "a\nadmin", "bell\a", "\x9b2J", "back\u202eward", "nul\0", "\x7f"]
"""Escape sequences, a second line, C1 and bidirectional controls."""


@pytest.mark.parametrize("name", BAD)
@in_a_loop
async def test_a_node_takes_no_such_name_of_a_worker_or_gateway(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path) as here:
        client = await here.client()
        client.hold(here.offer(), SECONDS).tell(lambda _: None)
        await here.loaded()
        for message in (
            here.offer(worker=name),
            replace(here.attend(), worker=name),
            Heartbeat("n", here.queue, 1, 0, 0, WORKER, name, []),
            replace(watch(), name=name),
        ):
            with pytest.raises(InvalidName, match="has control characters") as refused:
                await client.request(message, SECONDS)
            assert str(refused.value).isprintable()
        (shard,) = here.node.shards
        partitions: Any = shard._partitions
        for owned in partitions.owned.values():
            assert next(iter(owned.partition.worker_sightings.workers.values()))[0] == "ant"
            assert not owned.partition.presence.workers


@in_a_loop
async def test_a_worker_takes_no_such_name_of_a_gateway() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app) as worker,
        a_gateway(worker, hello=False) as gateway,
    ):
        await gateway.hello(worker._session, name=f"gw{CLEAR_SCREEN}", frame_bytes=2**20)
        assert isinstance(await gateway.error(EVENT_STREAM), InvalidName)
        await gateway.gone()


@pytest.mark.parametrize("name", [*BAD, ""])
def test_no_user_is_called_so(name: str) -> None:
    user = User(secret=cheaply("s"), permissions={})
    with pytest.raises(InvalidSetting) as refused:
        check_user(name, user, "a file")
    assert str(refused.value).isprintable()
    check_user("Jos\u00e9 van der Berg", user, "a file")


@pytest.mark.parametrize("text", BAD)
def test_what_others_wrote_commands_no_terminal(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table([{"worker": text, "queue": "n/q"}])
    print_json({"worker": text})
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown.split("\n")) == 2 + 3 + 1
    assert json.loads(json_text({"worker": text})) == {"worker": text}
    problem = decode_error(encode_error(InvalidName(text, remedy=text)))
    assert str(problem).isprintable()
    for style in ("human", "json"):
        stream = io.StringIO()
        log = logger(Log(format=style), stream)
        log.warning("a query failed", user=text, error=QueryFailed(text))
        (line, end) = stream.getvalue().split("\n")
        assert not end
        assert style == "json" or line.isprintable()
