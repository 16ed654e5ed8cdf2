"""The directory that is a node."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from maitred.errors import CannotStart
from maitred.node.identity import data_directory

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = "11111111-2222-4333-8444-555555555555"


def test_the_identity_survives_and_is_private(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "data"
    with data_directory(str(place)) as first:
        identity = first.node
        assert first.path == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "node.json").stat().st_mode) == 0o600
    assert UUID(json.loads((place / "node.json").read_text())["node"]) == identity
    with data_directory(str(place)) as second:
        assert second.node == identity
    assert sorted(file.name for file in place.iterdir()) == ["lock", "node.json"]


def test_a_new_identity_is_on_disk_before_it_has_its_name_and_then_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had_name: list[bool] = []
    fsync = os.fsync

    def record(file: int) -> None:
        had_name.append((tmp_path / "node.json").exists())
        fsync(file)

    monkeypatch.setattr(os, "fsync", record)
    with data_directory(str(tmp_path)):
        pass
    assert had_name == [False, True]


@pytest.mark.parametrize("name", ["lock", "node.new"])
def test_a_link_in_the_directory_leads_to_no_other_file(name: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not a node's")
    data = tmp_path / "data"
    data.mkdir()
    (data / name).symlink_to(precious)
    with pytest.raises(CannotStart), data_directory(str(data)):
        pass
    assert precious.read_text() == "not a node's"


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    with data_directory(str(tmp_path / "a")) as a, data_directory(str(tmp_path / "b")) as b:
        assert a.node != b.node


def test_a_second_node_is_told_who_has_it(tmp_path: Path) -> None:
    with (
        data_directory(str(tmp_path)),
        pytest.raises(CannotStart, match=rf"process {os.getpid()}\. Stop that node"),
        data_directory(str(tmp_path)),
    ):
        pass
    with data_directory(str(tmp_path)):
        pass  # and now it is free


def test_shards_hold_the_lock_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    """A process that took the directory and died, and a child of it that inherited the lock."""
    program = (
        "import subprocess, sys; from maitred.node.identity import data_directory\n"
        "with data_directory(sys.argv[1]) as taken:\n"
        "    subprocess.Popen(['cat'], pass_fds=[taken.lock], stdout=subprocess.DEVNULL)\n"
        "    import os; os._exit(0)"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE
    )
    assert supervisor.wait(30) == 0
    with (
        pytest.raises(CannotStart, match="is gone, but its shards still finish"),
        data_directory(str(tmp_path)),
    ):
        pass
    assert supervisor.stdin is not None
    supervisor.stdin.close()  # the end of `cat`


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"{}", b'{"node": 7}', b'{"node": "me"}', b"\xff\xfe", b"\0" * 100],
)
def test_a_damaged_identity_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "node.json"
    file.write_bytes(content)
    with (
        pytest.raises(CannotStart, match="does not tell which node"),
        data_directory(str(tmp_path)),
    ):
        pass
    assert file.read_bytes() == content


def test_an_identity_with_more_in_it_is_one_of_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(f'{{"node": "{IDENTITY}", "later": 1}}')
    with data_directory(str(tmp_path)) as taken:
        assert taken.node == UUID(IDENTITY)


def test_half_a_file_of_a_start_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "node.new").write_bytes(b'{"no')
    with data_directory(str(tmp_path)) as taken:
        assert UUID(json.loads((tmp_path / "node.json").read_text())["node"]) == taken.node


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("file", "file/below", "nul\0"):
        with (
            pytest.raises(CannotStart, match="cannot be used"),
            data_directory(str(tmp_path / wrong)),
        ):
            pass


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("ROOT MAY WRITE ANYWHERE: an unwritable directory was not tried")
    tmp_path.chmod(0o500)
    with pytest.raises(CannotStart, match="Permission denied"), data_directory(str(tmp_path)):
        pass


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files is the full disk that every user can make."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(CannotStart, match="File too large"), data_directory(str(tmp_path)):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    with data_directory(str(tmp_path)):
        pass  # there is room again
