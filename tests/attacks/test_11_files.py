"""Files with tasks, keys and secrets are for their owner alone, and what is not so is told."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.cli.main import cli
from maitred.errors import CannotStart, MaitredError
from maitred.gateway.process import stand_alone
from maitred.node.identity import data_directory
from maitred.node.node_reload import SettingsSource
from maitred.security.exposed_files import exposures, warn_of_exposed_files
from maitred.settings import Node, Tls
from maitred.store.private_files import tighten
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import RecordedLog
from tests.node.nodes import running_node
from tests.store.samples import KEY, acquire, segment, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


async def used(directory: Path) -> dict[str, int]:
    """The modes of all files of a store that has written something, while it is open."""
    store = await open_sqlite(directory, 0)
    await acquire(store, KEY)
    await write(store, KEY, 1, backlog=1, segments=[segment(1, 2)])
    await store.signing_key()
    found = modes(directory)
    await store.close()
    return found


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_store_in_a_directory_that_was_there_is_private(tmp_path: Path, mask: int) -> None:
    tmp_path.chmod(0o755)
    with umask(mask):
        found = asyncio.run(used(tmp_path))
    assert {"tasks-0.db", "tasks-0.db-wal", "tasks-0.db-shm", "tasks.key", "tasks.lock"} <= set(
        found
    )
    assert set(found.values()) == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755  # it may be somebody's home


def test_a_umask_that_forbids_everything_forbids_the_node_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    with umask(0o777):
        found = asyncio.run(used(directory))
    assert set(found.values()) == {0o600}


def test_files_that_others_could_use_are_tightened_at_the_start(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path))
    (tmp_path / "mine.txt").write_text("somebody's")
    for file in tmp_path.iterdir():
        file.chmod(0o664)
    with data_directory(str(tmp_path)) as data:
        told = {one.name: (one.mode, one.done) for one in data.tightened}
        assert told.keys() >= {"tasks-0.db", "tasks.key", "tasks.lock"}
        assert set(told.values()) == {(0o664, True)}
        assert not data.shared
    found = modes(tmp_path)
    assert found.pop("mine.txt") == 0o664
    assert set(found.values()) == {0o600}
    assert tighten(tmp_path) == []


def test_a_real_node_makes_nothing_that_others_can_read_and_says_what_was_open(
    tmp_path: Path,
) -> None:
    """From the command line to the last file, beside a users file that everybody can read."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / "tasks-7.db").touch()
    (data / "tasks-7.db").chmod(0o644)
    users = tmp_path / "users.toml"
    users.write_text("")
    users.chmod(0o644)
    with umask(0o000), running_node("--users-file", str(users), shards=2, data=data) as node:
        told = node.events("others could use a file; now they cannot")
        assert [entry["file"] for entry in told] == [str(data / "tasks-7.db")]
        (entry,) = node.events("others can use a file with secrets")
        assert (entry["setting"], entry["file"]) == ("users_file", str(users))
        assert (entry["mode"], entry["level"]) == ("0644", "warning")
        assert node.events("others can write to the data directory")
        found = modes(data)
        assert {"lock", "node.json", "tasks-0.db", "tasks-1.db", "tasks.lock"} <= set(found)
        assert set(found.values()) == {0o600}


@pytest.mark.parametrize("name", ["tasks-0.db", "tasks-0.db-wal", "tasks.key", "node.json"])
def test_a_node_does_not_start_with_a_link_that_somebody_put_there(
    tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not a node's")
    precious.chmod(0o644)
    data = tmp_path / "data"
    data.mkdir()
    (data / name).symlink_to(precious)
    with pytest.raises(CannotStart, match="is a link"), data_directory(str(data)):
        pass
    assert stat.S_IMODE(precious.stat().st_mode) == 0o644


def test_nor_with_a_pipe_on_which_it_would_wait_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tasks-0.db")
    with pytest.raises(CannotStart, match="a pipe"), data_directory(str(tmp_path)):
        pass
    with pytest.raises(CannotStart, match="a pipe"):
        asyncio.run(open_sqlite(tmp_path, 0))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nor_with_a_file_of_another_user(tmp_path: Path) -> None:
    """Who could read everything that is written to it."""
    (tmp_path / "tasks-0.db").touch()
    os.chown(tmp_path / "tasks-0.db", 12345, -1)
    with pytest.raises(CannotStart, match="belongs to user 12345"), data_directory(str(tmp_path)):
        pass
    with pytest.raises(CannotStart, match="belongs to user 12345"):
        asyncio.run(open_sqlite(tmp_path, 0))
    os.chown(tmp_path, 12345, -1)  # whose directory it is may replace every file anyway
    with data_directory(str(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("mode", "root", "others"),
    [
        (0o600, False, None),
        (0o400, False, None),
        (0o640, True, None),
        (0o640, False, "read"),
        (0o644, True, "read"),
        (0o620, True, "change"),
        (0o666, False, "read and change"),
    ],
)
def test_a_key_that_others_can_use_draws_a_warning(
    tmp_path: Path, mode: int, *, root: bool, others: str | None
) -> None:
    key = tmp_path / "key.pem"
    key.write_text("secret")
    key.chmod(mode)
    if not root:
        if os.geteuid() != 0:
            pytest.skip("this user's own files are like root's only to root")
        os.chown(key, 12345, -1)
    settings = Node(tls=Tls(certificate=str(tmp_path / "public.pem"), key=str(key)))
    log = RecordedLog()
    warn_of_exposed_files(settings, None, log)
    told = [(fields["setting"], fields["others_can"]) for _, _, fields in log.lines]
    assert told == ([] if others is None else [("tls.key", others)])


def test_a_gateway_on_its_own_warns_as_well(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("secret")
    key.chmod(0o644)
    settings = Node(tls=Tls(certificate=str(tmp_path / "missing.pem"), key=str(key)))
    log = RecordedLog()
    source = SettingsSource(lambda: settings)

    async def main() -> None:
        await stand_alone("maitred://127.0.0.1:1", settings, cast("Any", log), print, print, source)

    with pytest.raises(MaitredError):  # there is no certificate
        asyncio.run(main())
    assert [fields["setting"] for _, _, fields in log.lines] == ["tls.key"]


def test_a_settings_file_counts_if_there_are_secrets_in_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("port = 4747\n")
    file.chmod(0o644)
    assert exposures(Node(), str(file)) == []
    file.write_text('store = "postgresql://maitred:secret@host/database"\n')
    ((what, path, mode, others),) = exposures(Node(), str(file))
    assert (what, path, mode, others) == ("the settings file", str(file), "0644", "read")
    assert exposures(Node(users_file=str(tmp_path / "nowhere")), None) == []


def test_a_token_file_that_others_can_read_draws_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("mtr_something")
    for mode, warned in ((0o644, True), (0o600, False)):
        token.chmod(mode)
        arguments = ["status", "--url", "maitred://127.0.0.1:1", "--timeout", "0.1"]
        with pytest.raises(BaseException):  # noqa: B017, PT011 - there is no node
            cli.main([*arguments, "--token-file", str(token)], standalone_mode=False)
        assert ("others can read the token file" in capfd.readouterr().err) == warned
