"""Backups of SQLite stores: made under load, verified, and recognised when they are restored."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import CannotStart, InvalidArgument, MaitredError, StoreUnavailable
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.records import SEQUENCES_PER_RANGE, Changes
from maitred.store import sqlite_backup
from maitred.store.interface import Acquisition
from maitred.store.manifest import RANGE_JUMP, read_manifest
from maitred.store.sqlite_backup import back_up, read_backup, restore
from maitred.store.sqlite_recovery import prepare
from tests.cli.running import maitred, maitred_json
from tests.node.in_process import RecordedLog
from tests.store.samples import KEY, OTHER, dead, later, result
from tests.store.test_manifest import backlogs, filled, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.records import Acquired

ROOT = Path(__file__).parent.parent.parent


def silent(_done: int, _total: int, _what: str) -> None:
    """Nobody looks at the progress."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    filled(directory)
    (directory / "tokens.document").write_bytes(b"1\nhashes")
    (directory / "node.json").write_bytes(b'{"node": "6d616974-7265-4000-8000-000000000001"}')
    return directory


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "data")


def test_a_backup_is_what_was_there(data: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    store = opened(data)
    (got,) = store.acquire([Acquisition(KEY)])
    store.commit(
        [
            Changes(
                KEY,
                got.range_id,  # type: ignore[union-attr]
                5,
                later=[later(9, 5.0)],
                dead=[dead(7)],
                results=[result(8, 9.0)],
            )
        ]
    )
    made = back_up(data, tmp_path / "backup", lambda done, total, _: told.append((done, total)))
    store.close()
    assert [made.total(one) for one in ("tasks", "later", "dead", "results")] == [9, 1, 1, 1]
    names = sorted(one.name for one in (tmp_path / "backup").iterdir())
    assert names == ["backup.json", "node.json", "tasks-0.db", "tasks-1.db", "tokens.document"]
    assert all(one.stat().st_mode & 0o077 == 0 for one in (tmp_path / "backup").iterdir())
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0
    assert read_backup(tmp_path / "backup") == made
    assert not list(tmp_path.glob(".backup-*"))
    with pytest.raises(InvalidArgument, match="exists"):
        back_up(data, tmp_path / "backup", silent)


def test_a_restored_backup_starts_and_says_what_it_is(data: Path, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "backup", silent)
    with pytest.raises(CannotStart, match="is a backup, not a data directory"):
        opened(tmp_path / "backup")
    new = tmp_path / "new"
    new.mkdir()
    restore(tmp_path / "backup", new, silent, replaces=False)
    assert (new / "node.json").read_bytes() == (data / "node.json").read_bytes()
    assert (new / "tokens.document").read_bytes() == b"1\nhashes"
    for at in range(2):
        log = RecordedLog()
        prepare(new, (), log)
        assert log.events("warning") == (["the store is a restored backup"] if at == 0 else [])
        assert backlogs(new) == [4, 4]
    manifest = read_manifest(new)
    assert manifest is not None
    assert manifest.store == made.store
    assert "restored a backup of" in manifest.history[-1].what


def test_who_holds_a_task_of_before_cannot_end_one_of_after(data: Path, tmp_path: Path) -> None:
    """Numbers that were given out after the backup are not given out again, and the key is new."""
    back_up(data, tmp_path / "backup", silent)
    store = opened(data)
    (before,) = [store.acquire([Acquisition(KEY)]) for _ in range(5)][-1]
    held = before.range_id * SEQUENCES_PER_RANGE  # type: ignore[union-attr]
    proof = AttemptProofs(store.signing_key(), KEY).issue(held, 1, b"holder")
    store.close()
    with pytest.raises(InvalidArgument, match="has a store already"):
        restore(tmp_path / "backup", data, silent, replaces=False)
    restore(tmp_path / "backup", data, silent, replaces=True)
    put_away = [one.name for one in data.glob("replaced-*/*")]
    assert sorted(name for name in put_away if not name.endswith(("-wal", "-shm"))) == [
        "tasks-0.db",
        "tasks-1.db",
        "tasks.key",
        "tasks.manifest",
        "tokens.document",
    ]
    store = opened(data)
    after: list[Acquired] = store.acquire(
        [Acquisition(KEY), Acquisition(KEY._replace(queue="new"))]
    )  # type: ignore[assignment]
    for one in after:
        assert one.range_id > before.range_id + RANGE_JUMP // 2  # type: ignore[union-attr]
    assert not AttemptProofs(store.signing_key(), KEY).verify(held, 1, b"holder", proof)
    store.close()
    assert backlogs(data) == [4, 4]


def test_backups_under_load_are_whole(tmp_path: Path) -> None:
    """A process commits as fast as it can to two partitions at once; each backup has both alike."""
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tests.store.committer", "sqlite", str(data)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            safe = 0
            for number in range(3):
                for _ in range(20):
                    safe = int(writer.stdout.readline())
                made = back_up(data, tmp_path / f"backup-{number}", silent)
                assert made.total("segments") == made.total("tasks") >= 2 * safe
                new = tmp_path / f"new-{number}"
                new.mkdir()
                restore(tmp_path / f"backup-{number}", new, silent, replaces=False)
                kept, other = backlogs(new)
                assert kept == other >= safe
        finally:
            writer.kill()
    # The node that was backed up and killed goes on, too.
    assert min(backlogs(data)) >= safe


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
def test_a_damaged_backup_is_refused_before_anything_is_touched(
    data: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    back_up(data, tmp_path / "backup", silent)
    harm(tmp_path / "backup" / "tasks-1.db")
    with pytest.raises(InvalidArgument, match="not the file that was backed up"):
        restore(tmp_path / "backup", data, silent, replaces=True)
    assert backlogs(data) == [4, 4]


def test_a_damaged_file_is_not_passed_off_as_a_backup(data: Path, tmp_path: Path) -> None:
    """The root page of an index is garbled, which a start does not notice."""
    path = data / "tasks-1.db"
    with closing(sqlite3.connect(path)) as connection:
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'later_by_due'"
        )
    content = bytearray(path.read_bytes())
    content[4096 * (page - 1) : 4096 * page] = b"\x55" * 4096
    path.write_bytes(content)
    with pytest.raises(MaitredError) as refused:
        back_up(data, tmp_path / "backup", silent)
    assert isinstance(refused.value, StoreUnavailable)
    assert "tasks-1.db" in str(refused.value)
    assert not (tmp_path / "backup").exists()
    assert not list(tmp_path.glob(".backup-*"))


@pytest.mark.parametrize("fresh", [True, False], ids=["new", "replaced"])
@pytest.mark.parametrize("step", ["put_away", "_bring", "raise_numbers", "write_manifest"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_restore_that_was_interrupted_is_not_taken_for_a_store(
    data: Path, tmp_path: Path, step: str, at: int, *, fresh: bool
) -> None:
    """Wherever it ends: before the nth call of each step, and after it."""
    back_up(data, tmp_path / "backup", silent)
    target = tmp_path / "new" if fresh else data
    target.mkdir(exist_ok=True)
    real = getattr(sqlite_backup, step)
    calls = 0

    def interrupted(*arguments: Any) -> None:  # noqa: ANN401
        nonlocal calls
        calls += 1
        if calls == (at + 1) // 2 and at % 2:
            raise KeyboardInterrupt
        real(*arguments)
        if calls == (at + 1) // 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_backup, step, interrupted)
        try:
            restore(tmp_path / "backup", target, silent, replaces=True)
        except KeyboardInterrupt:
            with pytest.raises(CannotStart, match="was interrupted"):
                opened(target)
            patch.undo()
            restore(tmp_path / "backup", target, silent, replaces=True)
    assert backlogs(target) == [4, 4]


def test_files_of_a_backup_that_are_copied_by_hand_are_noticed(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup", silent)
    opened(data).close()
    shutil.copy(tmp_path / "backup" / "tasks-0.db", data / "tasks-0.db")
    with pytest.raises(CannotStart, match=r"tasks-0\.db is an older copy"):
        opened(data)


def test_the_commands(data: Path, tmp_path: Path) -> None:
    target, new = tmp_path / "backup", tmp_path / "new"
    made = maitred_json("admin", "backup", str(target), "--data", str(data))
    assert (made["tasks"], made["databases"], made["directory"]) == (8, 2, str(target))
    done = maitred("admin", "restore", str(target), "--data", str(new))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 tasks, 0 dead letters and 0 results of ")
    assert "100%" in done.stderr
    again = maitred("admin", "restore", str(target), "--data", str(new))
    assert again.returncode == 2
    assert "--replace" in again.stderr
    assert json.loads((target / "backup.json").read_bytes())["store"]
    assert backlogs(new) == [4, 4]


# Killed at any step

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from maitred.store import sqlite_backup

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect"}
what, origin, room = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def run(at):
    left = at
    def step(*_):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, _arguments):
        if event in EVENTS:
            step()
    here = room / str(at)
    shutil.copytree(origin, here)
    sys.addaudithook(hook)
    if what == "backup":
        sqlite_backup.back_up(here / "data", here / "made", step)
    else:
        sqlite_backup.restore(here / "backup", here / "data", step, replaces=what == "replace")

for at in range(1, 500):
    child = os.fork()
    if not child:
        run(at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        print(at)
        break
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status
"""


def killed_at_every_step(what: str, origin: Path, room: Path) -> list[Path]:
    """Copy the directory for each step, do it there, and kill it at that step; the last one is not
    killed."""
    room.mkdir()
    command = [sys.executable, "-c", KILLED, what, str(origin), str(room)]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 20, "it was hardly ever killed"
    return [room / str(at) for at in range(1, steps + 1)]


def contents(directory: Path) -> dict[str, bytes]:
    found = (one for one in directory.iterdir() if one.is_file())
    return {one.name: one.read_bytes() for one in found if not one.name.endswith("-shm")}


def test_a_backup_that_is_killed_at_any_step(data: Path, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    data.rename(origin / "data")
    before = contents(origin / "data")
    unfinished = 0
    for here in killed_at_every_step("backup", origin, tmp_path / "room"):
        after = contents(here / "data")
        assert {name: after[name] for name in before} == before
        assert all(not after[name] for name in after.keys() - before.keys()), "a log or a lock"
        for half in here.glob(".made-*"):
            new = here / "new"
            new.mkdir()
            if not (half / "backup.json").exists():
                unfinished += 1
                with pytest.raises(InvalidArgument, match=r"not a backup: it has no backup\.json"):
                    restore(half, new, silent, replaces=False)
                assert not list(new.glob("*.db"))
        if not (here / "made").exists():
            back_up(here / "data", here / "made", silent)
        assert read_backup(here / "made").total("tasks") == 8
        assert backlogs(here / "data") == [4, 4]
    assert unfinished > 5


@pytest.mark.parametrize("what", ["new", "replace"])
def test_a_restore_that_is_killed_at_any_step(data: Path, tmp_path: Path, what: str) -> None:
    origin = tmp_path / "origin"
    back_up(data, tmp_path / "backup", silent)
    highest = 0
    if what == "replace":
        with closing(sqlite3.connect(data / "tasks-0.db", isolation_level=None)) as connection:
            # Much has happened since the backup: more than a restore leaves out in any case.
            connection.execute("UPDATE partitions SET range_id = ?", (10 * RANGE_JUMP,))
        store = opened(data)
        (got,) = store.acquire([Acquisition(KEY)])
        highest = got.range_id  # type: ignore[union-attr]
        store.close()
    origin.mkdir()
    (tmp_path / "backup").rename(origin / "backup")
    (origin / "data").mkdir()
    if what == "replace":
        shutil.copytree(data, origin / "data", dirs_exist_ok=True)
    originals = set(contents(origin / "data").values())
    refusals: list[str] = []
    for here in killed_at_every_step(what, origin, tmp_path / "room"):
        found = here / "data"
        kept = {one.read_bytes() for one in found.rglob("*") if one.is_file()}
        assert originals <= kept, "what was there is put away, and never deleted"
        try:
            prepare(found, (), RecordedLog())
        except CannotStart as refusal:
            refusals.append(str(refusal))
        restore(here / "backup", found, silent, replaces=True)
        prepare(found, (), RecordedLog())
        store = opened(found)
        both: list[Acquired] = store.acquire([Acquisition(KEY), Acquisition(OTHER)])  # type: ignore[assignment]
        store.close()
        assert [one.backlog for one in both] == [4, 4]
        assert both[0].range_id > highest, "numbers of before are not given out again"
    assert len(refusals) > 5
    assert all("was interrupted. Repeat it: `maitred admin restore" in one for one in refusals)
