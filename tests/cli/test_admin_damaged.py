"""`maitred admin queue damaged` against a node whose file was damaged."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from maitred.cli import admin_damaged
from maitred.cli.admin_names import RowId
from maitred.cli.main import cli
from maitred.errors import InvalidArgument, MaitredError, PermissionDenied
from maitred.protocol.tasks import DamagedRow
from tests.node.in_process import in_a_loop
from tests.node.test_damaged_rows import body, flip, settled, three_segments
from tests.node.test_task_faults import Stage, stage

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

QUEUE = "shop/mails"


async def typed(one: Stage, *arguments: str) -> Result:
    """As `maitred admin queue damaged ...`; errors come out as they are."""
    url = f"maitred://127.0.0.1:{one.shard.place.port}"
    command = ["admin", "queue", *arguments, "--url", url]
    done = await asyncio.to_thread(CliRunner().invoke, cli, command, standalone_mode=False)
    if isinstance(done.exception, MaitredError | click.Abort):
        raise done.exception
    return done


async def told(one: Stage, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return json.loads((await typed(one, *arguments, "--json")).stdout)


@in_a_loop
async def test_from_the_alarm_to_the_decision(tmp_path: Path) -> None:
    first, second, _ = await three_segments(tmp_path)
    whole = body(tmp_path, first)
    flip(tmp_path, "segments", f"first <= {second}")
    async with stage(tmp_path) as one:
        assert len(await one.take(20)) == 4
        await settled(one)
        described = (await typed(one, "describe", QUEUE)).stdout
        assert "damaged     2 rows with 8 tasks" in described
        listed = await told(one, "damaged", "list", QUEUE)
        ids = [row["id"] for row in listed["rows"]]
        assert ids == [f"0/{first}/segment", f"0/{second}/segment"]
        assert listed["tasks"] == 8
        table = (await typed(one, "damaged", "list", QUEUE)).stdout
        assert "Its checksum is wrong." in table
        shown = (await typed(one, "damaged", "show", QUEUE, ids[0])).stdout
        assert "4 that are not over" in shown

        exported = tmp_path / "row"
        await typed(one, "damaged", "export", QUEUE, ids[0], "--to", str(exported))
        assert exported.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidArgument, match="File exists"):
            await typed(one, "damaged", "export", QUEUE, ids[0], "--to", str(exported))
        refused = await typed(one, "damaged", "retry", QUEUE, ids[0])
        assert refused.exit_code == 1
        assert "still cannot be read" in refused.output
        assert exported.read_bytes() != whole
        exported.write_bytes(whole)
        back = await typed(one, "damaged", "retry", QUEUE, ids[0], "--from", str(exported))
        assert back.stdout == f"1 damaged rows of {QUEUE}: brought back, with 4 tasks.\n"
        with pytest.raises(InvalidArgument, match="not a terminal"):
            await typed(one, "damaged", "drop", QUEUE, ids[1])
        dropped = await told(one, "damaged", "drop", QUEUE, "--all", "--yes")
        assert [row["id"] for row in dropped["done"]] == ids[1:]
        assert "has no damaged rows" in (await typed(one, "damaged", "list", QUEUE)).stdout
        missing = await typed(one, "damaged", "drop", QUEUE, ids[1], "--yes")
        assert missing.exit_code == 1


@pytest.mark.parametrize("text", ["", "1", "0/1", "0/1/segments", "x/1/later", "0/1/2/dead"])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no damaged row's id"):
        RowId.parse(text)
    assert str(RowId.parse("3/42/later")) == "3/42/later"


def test_a_body_that_the_user_may_not_see_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node leaves it out of its answer; the store can read it all the same."""
    row = DamagedRow(
        partition=0,
        kind="dead",
        first=5,
        last=5,
        tasks=0,
        noticed_at=1.0,
        reason="Its checksum is wrong.",
        body_bytes=40,
        body=b"",
    )
    monkeypatch.setattr(admin_damaged, "_row", lambda *_, **__: row)
    target = tmp_path / "row"
    command = ["admin", "queue", "damaged", "export", QUEUE, "0/5/dead", "--to", str(target)]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert isinstance(done.exception, PermissionDenied)
    assert not target.exists()
