"""A start knows which files it must find, and that each is the one that was left."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import CannotStart, InvalidArgument
from maitred.matching.records import Changes
from maitred.store.interface import Acquisition
from maitred.store.manifest import MANIFEST_FILE, RANGE_JUMP, read_manifest
from maitred.store.scripts import migrations
from maitred.store.sqlite_directory import GENERATION_SECONDS, KEY_FILE, SqliteDirectory
from maitred.store.sqlite_file import APPLICATION
from maitred.store.sqlite_recovery import prepare
from tests.cli.running import MAITRED, maitred
from tests.node.in_process import RecordedLog
from tests.store.samples import KEY, OTHER, segment

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent.parent


def opened(directory: Path, own: int = 0) -> SqliteDirectory:
    return SqliteDirectory(directory, own, 1.0)


def filled(directory: Path) -> None:
    """Two files, with a partition of four tasks each; closed in order."""
    for own, key in enumerate((KEY, OTHER)):
        store = opened(directory, own)
        store.acquire([Acquisition(key)])
        store.commit([Changes(key, 1, 4, segments=[segment(1, 4)])])
        store.signing_key()
        store.close()


def crashed(directory: Path, program: str = "") -> None:
    """A process that has both files open, writes to them, and is killed."""
    text = f"""
import os, signal, sys
from pathlib import Path
from maitred.matching.records import Changes
from maitred.store.interface import Acquisition
from maitred.store.sqlite_directory import SqliteDirectory
from tests.store.samples import KEY, OTHER, segment
store = SqliteDirectory(Path(sys.argv[1]), 0, 5.0)
for key in (KEY, OTHER):
    (got,) = store.acquire([Acquisition(key)])
    store.commit([Changes(key, got.range_id, 5, segments=[segment(9, 9)])])
{program}
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", text, str(directory)], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == -9


def backlogs(directory: Path) -> list[int]:
    store = opened(directory)
    found = [one.backlog for one in store.acquire([Acquisition(KEY), Acquisition(OTHER)])]  # type: ignore[union-attr]
    store.close()
    return found


def refused(directory: Path) -> str:
    """What a start says; it must say the same the second time, and change nothing."""
    said = []
    for _ in range(2):
        with pytest.raises(CannotStart) as problem:
            opened(directory)
        said.append(str(problem.value))
        with pytest.raises(CannotStart) as problem:
            prepare(directory, (), RecordedLog())
        said.append(str(problem.value))
    assert len(set(said)) == 1
    return said[0]


def accept(directory: Path, *names: str) -> list[tuple[str, str, dict[str, Any]]]:
    log = RecordedLog()
    prepare(directory, names, log)
    return log.lines


def test_a_directory_that_was_left_in_order_is_found_so(tmp_path: Path) -> None:
    filled(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert not manifest.open
    assert sorted(manifest.files) == ["tasks-0.db", "tasks-1.db"]
    assert all(not (tmp_path / f"{name}-wal").exists() for name in manifest.files)
    assert backlogs(tmp_path) == [4, 4]
    assert (tmp_path / MANIFEST_FILE).stat().st_mode & 0o777 == 0o600


def test_a_directory_whose_process_was_killed_is_found_so(tmp_path: Path) -> None:
    filled(tmp_path)
    for _ in range(3):
        crashed(tmp_path)
        manifest = read_manifest(tmp_path)
        assert manifest is not None
        assert manifest.open
        prepare(tmp_path, (), RecordedLog())
        assert backlogs(tmp_path) == [5, 5]


def test_a_process_that_forgets_to_close_loses_nothing(tmp_path: Path) -> None:
    """Python closes what it forgets, and SQLite would remove the log."""
    filled(tmp_path)
    text = f"""
from pathlib import Path
from maitred.store.sqlite_directory import SqliteDirectory
store = SqliteDirectory(Path({str(tmp_path)!r}), 0, 5.0)
"""
    subprocess.run([sys.executable, "-c", text], cwd=ROOT, check=True, timeout=60)
    assert backlogs(tmp_path) == [4, 4]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_anew(path: Path) -> None:
    path.unlink()
    store = opened(path.parent / "elsewhere", 1)
    store.acquire([Acquisition(OTHER)])
    store.close()
    shutil.copy(path.parent / "elsewhere" / path.name, path)


def swap(path: Path) -> None:
    shutil.copy(path.parent / "tasks-0.db", path)


def garble(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:5000])


def unnamed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM identity")


HARM: list[tuple[Callable[[Path], None], str]] = [
    (remove, "tasks-1.db is missing"),
    (empty, "tasks-1.db is empty"),
    (make_anew, "tasks-1.db belongs to another data directory"),
    (swap, "tasks-1.db is not the file that was left: it is tasks-0.db"),
    (garble, "tasks-1.db is not a database, or it is damaged"),
    (cut, "tasks-1.db is not a database, or it is damaged"),
    (unnamed, "tasks-1.db is not the file that was left: it has no identity"),
]


@pytest.mark.parametrize(("harm", "said"), HARM, ids=[harm.__name__ for harm, _ in HARM])
def test_a_file_that_is_not_the_one_that_was_left(
    tmp_path: Path, harm: Callable[[Path], None], said: str
) -> None:
    filled(tmp_path)
    harm(tmp_path / "tasks-1.db")
    sentence = refused(tmp_path)
    assert said in sentence
    assert "--accept-loss tasks-1.db" in sentence
    with pytest.raises(InvalidArgument, match="Nothing is wrong with tasks-0"):
        accept(tmp_path, "tasks-0.db", "tasks-1.db")
    key = (tmp_path / KEY_FILE).read_bytes()
    ((level, event, fields),) = accept(tmp_path, "tasks-1.db")
    assert (level, event) == ("warning", "loss accepted")
    assert fields["file"].endswith("tasks-1.db")
    put_away = sorted(one.name for one in tmp_path.glob("lost-*/*") if one.suffix == ".db")
    assert put_away == ([] if harm is remove else ["tasks-1.db"]), "nothing is deleted"
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert [one.file for one in manifest.history] == ["tasks-1.db"]
    store = opened(tmp_path, 1)
    kept, lost = store.acquire([Acquisition(KEY), Acquisition(OTHER)])
    assert (kept.backlog, lost.backlog) == (4, 0)  # type: ignore[union-attr]
    # Numbers of tasks that were lost never come again, and old proofs are worth nothing.
    assert min(kept.range_id, lost.range_id) > RANGE_JUMP  # type: ignore[union-attr]
    assert store.signing_key() != key
    store.close()
    assert backlogs(tmp_path) == [4, 0]


def test_an_older_copy_of_one_file(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.copy(tmp_path / "tasks-1.db", tmp_path / "copy")
    crashed(tmp_path)
    for part in ("", "-wal", "-shm"):
        (tmp_path / f"tasks-1.db{part}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "copy", tmp_path / "tasks-1.db")
    assert "tasks-1.db is an older copy" in refused(tmp_path)
    accept(tmp_path, "tasks-1.db")
    assert backlogs(tmp_path) == [5, 4]


def test_an_older_copy_of_the_same_run_is_noticed_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("maitred.store.sqlite_directory.time.monotonic", lambda: now[0])
    store = opened(tmp_path)
    store.acquire([Acquisition(KEY)])
    with (
        closing(sqlite3.connect(tmp_path / "tasks-0.db")) as source,
        closing(sqlite3.connect(tmp_path / "copy")) as copy,
    ):
        source.backup(copy)
    generations = []
    for _ in range(3):
        store.commit([Changes(KEY, 1, 1, segments=[segment(1, 1)])])
        now[0] += GENERATION_SECONDS
        for _ in range(3):
            store.use()
        manifest = read_manifest(tmp_path)
        assert manifest is not None
        generations.append(manifest.files["tasks-0.db"].generation)
    assert [later - generations[0] for later in generations] == [0, 1, 2]
    store.close()
    shutil.copy(tmp_path / "copy", tmp_path / "tasks-0.db")
    assert "is an older copy" in refused(tmp_path)


@pytest.mark.parametrize("harm", [remove, empty], ids=["removed", "emptied"])
def test_a_log_with_the_last_commits_is_missing(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    filled(tmp_path)
    checkpoint = "[file.carry_over() for file in store._files.values()]\n"
    crashed(tmp_path, checkpoint + "store.commit([Changes(OTHER, got.range_id, 6)])")
    harm(tmp_path / "tasks-0.db-wal")
    sentence = refused(tmp_path)
    assert "write-ahead log tasks-0.db-wal is missing or empty" in sentence
    assert "tasks-1.db" not in sentence, "a start that is refused leaves the other logs alone"
    accept(tmp_path, "tasks-0.db")
    assert backlogs(tmp_path)[1] == 6


def test_a_byte_of_the_log_is_wrong(tmp_path: Path) -> None:
    """SQLite takes that for the end of the log, and says nothing."""
    filled(tmp_path)
    more = "for _ in range(20): store.commit([Changes(OTHER, got.range_id, 6)])"
    crashed(tmp_path, more)
    path = tmp_path / "tasks-1.db-wal"
    whole = path.read_bytes()
    prepare(tmp_path, (), RecordedLog())
    # Everything but the last commit: whether that one was ever acknowledged cannot be told.
    for at in range(200, len(whole) - 2 * (24 + 4096), 4096 + 24):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (tmp_path / "tasks-1.db-shm").unlink(missing_ok=True)
        with pytest.raises(CannotStart, match=r"tasks-1\.db (has a damaged|is an older)"):
            prepare(tmp_path, (), RecordedLog())
    path.write_bytes(whole)
    (tmp_path / "tasks-1.db-shm").unlink(missing_ok=True)
    assert backlogs(tmp_path) == [5, 6]


def test_a_file_that_was_never_here(tmp_path: Path) -> None:
    filled(tmp_path)
    store = opened(tmp_path / "elsewhere", 7)
    store.close()
    shutil.copy(tmp_path / "elsewhere" / "tasks-7.db", tmp_path)
    assert "tasks-7.db is not a file that this directory had" in refused(tmp_path)
    (tmp_path / "tasks-7.db").unlink()
    assert backlogs(tmp_path) == [4, 4]


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"store": 1}'])
def test_a_manifest_that_is_gone_or_damaged(tmp_path: Path, content: bytes | None) -> None:
    filled(tmp_path)
    (tmp_path / MANIFEST_FILE).unlink()
    if content is not None:
        (tmp_path / MANIFEST_FILE).write_bytes(content)
    assert MANIFEST_FILE in refused(tmp_path)
    accept(tmp_path, MANIFEST_FILE)
    assert backlogs(tmp_path) == [4, 4]


def test_a_directory_that_was_moved_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    filled(tmp_path / "old")
    crashed(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert backlogs(tmp_path / "new") == [5, 5]


def test_a_directory_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    """It has no manifest, and its files have no identity."""
    for number in range(2):
        with closing(sqlite3.connect(tmp_path / f"tasks-{number}.db")) as connection:
            for migration in migrations("sqlite")[:3]:
                connection.executescript(migration.script)
            connection.executescript(
                f"""
                PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 3;
                INSERT INTO partitions (id, namespace, queue, queue_type, partition, range_id,
                    backlog, clean, found_clean)
                VALUES (7, 'shop', 'mails', 1, {number}, 3, 4, 1, 1);
                """  # noqa: S608 - fixed text
            )
    prepare(tmp_path, (), RecordedLog())
    assert backlogs(tmp_path) == [4, 4]
    (tmp_path / "tasks-1.db").unlink()
    assert "tasks-1.db is missing" in refused(tmp_path)


@pytest.mark.parametrize("fresh", [True, False], ids=["new", "existing"])
def test_killed_between_any_two_writes(tmp_path: Path, *, fresh: bool) -> None:
    """Wherever a start or a stop is killed, the next start finds everything, and says nothing."""
    if not fresh:
        filled(tmp_path)
    program = """
import os, shutil, signal, sys
from pathlib import Path
from maitred.store import manifest, sqlite_directory
from maitred.store.sqlite_file import SqliteFile
def counted(function):
    def call(*arguments):
        global left
        for _ in range(2):  # before and after
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            if _ == 0:
                answer = function(*arguments)
        return answer
    return call
sqlite_directory.write_manifest = counted(sqlite_directory.write_manifest)
for name in ("identify", "next_generation", "carry_over", "close"):
    setattr(SqliteFile, name, counted(getattr(SqliteFile, name)))
for left in range(1, 40):
    copy = f"{sys.argv[1]}-{left}"
    shutil.copytree(sys.argv[1], copy)
    child = os.fork()
    if not child:
        sqlite_directory.SqliteDirectory(Path(copy), 0, 5.0).close()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status)
    if not status:
        break
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )
    *killed, ended = map(int, done.stdout.split())
    assert set(killed) == {-9}
    assert len(killed) >= 6, "it was hardly ever killed"
    assert ended == 0, "it never came to its end"
    for at in range(1, len(killed) + 2):
        copy = tmp_path.parent / f"{tmp_path.name}-{at}"
        prepare(copy, (), RecordedLog())
        assert backlogs(copy) == ([0, 0] if fresh else [4, 4])


def test_several_processes_close_in_any_order(tmp_path: Path) -> None:
    stores = [opened(tmp_path, own) for own in range(3)]
    for at, store in enumerate(stores):
        store.close()
        manifest = read_manifest(tmp_path)
        assert manifest is not None
        assert manifest.open == (at < 2)
    stores = [opened(tmp_path, own) for own in (2, 0)]
    for store in stores:
        store.close()
    assert backlogs(tmp_path) == [0, 0]


def test_a_node_does_not_start_without_a_file_unless_it_is_told_to(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "tasks-1.db").unlink()
    start = ("up", "--shards", "1", "--port", "0", "--json", "--data", str(tmp_path))
    done = maitred(*start, "--set", "gateway.enabled=false")
    assert done.returncode == 1
    assert "tasks-1.db is missing" in done.stderr
    assert "--accept-loss tasks-1.db" in done.stderr
    command = [str(MAITRED), *start, "--set", "gateway.enabled=false", "--accept-loss"]
    with subprocess.Popen(
        [*command, "tasks-1.db"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        assert "url" in node.stdout.readline()
        node.terminate()
        _, said = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "loss accepted" in said
    assert backlogs(tmp_path) == [4, 0]
