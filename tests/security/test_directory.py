"""Users that change under way, and what somebody without a secret can learn."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from maitred.errors import InvalidSetting, Unauthenticated, UnknownSetting
from maitred.security import directory as module
from maitred.security import secrets
from maitred.security.directory import Directory
from maitred.security.secrets import Hashed, parse_hashed, verify
from maitred.settings import Node, User
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

ALICE, BOB = cheaply("alice's"), cheaply("bob's")


def written(file: Path, *users: tuple[str, str]) -> None:
    """As a careful program does it: a new file takes the place of the old one."""
    text = "".join(
        f'[users.{name}]\nsecret = "{hashed}"\n[users.{name}.permissions]\nshop = ["produce"]\n'
        for name, hashed in users
    )
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "users.toml"
    written(made, ("bob", BOB))
    return made


def reloaded(directory: Directory) -> bool:
    """As a process does it once a second."""
    return directory.has_changed() and directory.reload()


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes that were really verified against."""
    seen: list[str] = []

    def watched(secret: str, hashed: str) -> bool:
        seen.append(hashed)
        return verify(secret, hashed)

    monkeypatch.setattr(module, "verify", watched)
    return seen


def test_without_users_nobody_is_asked() -> None:
    directory = Directory(Node())
    assert not directory.required
    assert directory.user("alice") is None
    assert not reloaded(directory)


def test_users_of_the_settings_and_of_the_file(file: Path) -> None:
    alice = User(secret=ALICE, permissions={"*": ["admin"]})
    directory = Directory(Node(users={"alice": alice}, users_file=str(file)))
    assert directory.required
    assert directory.user("alice") == alice
    assert directory.user("carol") is None
    bob = directory.authenticate("bob", "bob's")
    assert bob.name == "bob"
    assert bob.permissions.allows("shop", "produce")
    assert not bob.permissions.allows("shop", "work")
    assert directory.authenticate("alice", "alice's").permissions.allows("anything", "admin")
    assert BOB not in repr(bob)


def test_an_empty_file_still_asks_everybody(file: Path) -> None:
    written(file)
    directory = Directory(Node(users_file=str(file)))
    assert directory.required
    with pytest.raises(Unauthenticated):
        directory.authenticate("bob", "bob's")


def test_unknown_users_and_wrong_secrets_cannot_be_told_apart(
    file: Path, verifications: list[str]
) -> None:
    directory = Directory(Node(users_file=str(file)))
    said = set()
    for name, secret in (("bob", "alice's"), ("nobody", "bob's"), ("", ""), ("bob", "")):
        with pytest.raises(Unauthenticated) as refused:
            directory.authenticate(name, secret)
        said.add(str(refused.value))
    assert len(said) == 1
    # Each was verified once, by a hash that takes as long: the work is what an attacker can time.
    assert len(verifications) == 4
    assert {parse_hashed(hashed).work for hashed in verifications} == {parse_hashed(BOB).work}


def test_right_secrets_are_verified_once_wrong_ones_always(
    file: Path, verifications: list[str]
) -> None:
    directory = Directory(Node(users_file=str(file)))
    assert directory.remembered("bob", "bob's") is None
    first = directory.authenticate("bob", "bob's")
    assert directory.authenticate("bob", "bob's") == first == directory.remembered("bob", "bob's")
    assert len(verifications) == 1
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            directory.authenticate("bob", "bob'S")
    assert len(verifications) == 3
    assert directory.remembered("bob", "bob'S") is None
    assert directory.remembered("nobody", "bob's") is None
    assert directory.remembered("bob", "x" * 2_000) is None


def test_what_is_remembered_is_bounded_and_the_oldest_goes(
    file: Path, verifications: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERIFIED_MAX", 2)
    written(file, *((name, BOB) for name in "abc"))
    directory = Directory(Node(users_file=str(file)))
    for name in "ab":
        directory.authenticate(name, "bob's")
    directory.authenticate("a", "bob's")  # used again: b is the oldest now
    directory.authenticate("c", "bob's")
    assert len(verifications) == 3
    assert [bool(directory.remembered(name, "bob's")) for name in "abc"] == [True, False, True]


def test_names_and_secrets_do_not_run_into_each_other(file: Path) -> None:
    written(file, ("a", cheaply("bc")), ("ab", cheaply("c")))
    directory = Directory(Node(users_file=str(file)))
    directory.authenticate("a", "bc")
    assert directory.remembered("ab", "c") is None


def test_a_changed_file_changes_the_users(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))
    bob = directory.authenticate("bob", "bob's")
    assert not reloaded(directory)
    assert directory.generation == 1

    written(file, ("bob", BOB), ("carol", ALICE))
    assert reloaded(directory)
    assert directory.generation == 2
    assert directory.user("carol") is not None
    assert directory.refreshed(bob) == bob

    written(file, ("bob", ALICE))
    assert reloaded(directory)
    assert directory.refreshed(bob) is None, "another secret"
    assert directory.remembered("bob", "bob's") is None
    with pytest.raises(Unauthenticated):
        directory.authenticate("bob", "bob's")

    written(file)
    assert reloaded(directory)
    assert directory.generation == 4
    assert directory.refreshed(bob) is None, "gone"


def test_permissions_change_for_those_who_are_in(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))
    bob = directory.authenticate("bob", "bob's")
    file.write_text(file.read_text().replace("produce", "work"))
    assert reloaded(directory)
    now = directory.refreshed(bob)
    assert now is not None
    assert now.permissions.allows("shop", "work")
    assert not now.permissions.allows("shop", "produce")


def test_a_touched_file_with_the_same_users_is_no_change(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))
    os.utime(file, ns=(1, 1))
    assert not reloaded(directory)
    assert directory.generation == 1


@pytest.mark.parametrize("same_size", [True, False])
def test_a_broken_file_keeps_the_users_and_is_told_once(file: Path, same_size: bool) -> None:
    directory = Directory(Node(users_file=str(file)))
    text = file.read_text()
    file.write_text("x" * len(text) if same_size else "[users")
    os.utime(file, ns=(5, 5))
    with pytest.raises(InvalidSetting, match=r"users\.toml is not TOML"):
        reloaded(directory)
    assert not reloaded(directory), "not until it changes again"
    assert directory.authenticate("bob", "bob's").name == "bob"
    file.write_text(text)
    os.utime(file, ns=(7, 7))
    assert not reloaded(directory), "the same users as before"
    written(file, ("carol", BOB))
    assert reloaded(directory)


def test_a_file_that_is_gone_keeps_the_users_and_may_come_back(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))
    file.unlink()
    with pytest.raises(InvalidSetting, match="cannot be read"):
        reloaded(directory)
    assert not reloaded(directory)
    assert directory.user("bob") is not None
    written(file, ("carol", BOB))
    assert reloaded(directory)
    assert directory.user("bob") is None


def test_a_user_in_both_places_is_refused(file: Path) -> None:
    with pytest.raises(InvalidSetting, match="'bob' is in the settings and in the file"):
        Directory(Node(users={"bob": User(secret=BOB)}, users_file=str(file)))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("port = 1", UnknownSetting, "'port'"),
        ("[user.bob]\nsecret = 'x'", UnknownSetting, "'users'"),
        ("[users.bob]\nsecret = 'x'", InvalidSetting, "users.bob.secret .*not a hashed secret"),
        ("[users.bob]", InvalidSetting, "users.bob.secret is missing"),
        ("[users.bob]\nsecret = 5", InvalidSetting, "users.bob.secret cannot be used"),
        (f"[users.bob]\nsecret = '{BOB}'\npermissions.x = ['fly']", InvalidSetting, "one of"),
        (f"[users.bob]\nsecret = '{BOB}'\npermissions.'a:b' = []", InvalidSetting, "has a colon"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(
    file: Path, text: str, error: type[Exception], said: str
) -> None:
    file.write_text(text)
    with pytest.raises(error, match=said) as refused:
        Directory(Node(users_file=str(file)))
    assert str(file) in str(refused.value)


def test_threads_may_authenticate_while_users_change(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))

    def attempt(turn: int) -> bool:
        try:
            return directory.authenticate("bob", "bob's" if turn % 2 else "wrong").name == "bob"
        except Unauthenticated:
            return False

    with ThreadPoolExecutor(4) as pool:
        results = pool.map(attempt, range(200))
        for turn in range(20):
            written(file, ("bob", BOB), (f"user{turn}", ALICE))
            assert reloaded(directory)
        assert list(results) == [bool(turn % 2) for turn in range(200)]


# Two secrets, and what is known to be wrong


def two(secret: str, previous: str) -> User:
    return User(secret=cheaply(secret), previous_secret=cheaply(previous))


def test_a_user_may_have_two_secrets() -> None:
    directory = Directory(Node(users={"alice": two("new", "old")}))
    new, old = (directory.authenticate("alice", secret) for secret in ("new", "old"))
    assert (new.secret, old.secret) == (cheaply("new"), cheaply("old"))
    assert directory.remembered("alice", "old") == old
    with pytest.raises(Unauthenticated):
        directory.authenticate("alice", "neither")
    assert directory.reload({"alice": User(secret=cheaply("new"))})
    assert directory.refreshed(new) == new
    assert directory.refreshed(old) is None, "it came in with a secret that is gone"
    assert directory.remembered("alice", "old") is None
    # The other way round, nobody has to leave: the old one is still there.
    assert directory.reload({"alice": two("newest", "new")})
    assert directory.refreshed(new) == new


def test_the_second_secret_is_checked_like_the_first() -> None:
    user = User(secret=ALICE, previous_secret="plain")  # noqa: S106
    with pytest.raises(InvalidSetting, match=r"users\.alice\.previous_secret") as refused:
        Directory(Node(users={"alice": user}))
    assert "plain" not in str(refused.value)


def test_whatever_is_wrong_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one secret, for two, for a cheaper hash, for nobody: what an attacker can time."""
    work: list[int] = []
    sound = secrets._scrypt

    def counted(secret: bytes, parts: Hashed) -> bytes:
        work.append(parts.work)
        return sound(secret, parts)

    dear = Hashed(2**14, 1, 1, b"salty" * 4, bytes(32))
    users = {
        "cheap": User(secret=ALICE),
        "dear": User(secret=str(dear)),
        "both": User(secret=str(dear), previous_secret=ALICE),
        "two": two("new", "old"),
    }
    directory = Directory(Node(users=users))
    monkeypatch.setattr(secrets, "_scrypt", counted)
    sums = {}
    for name in (*users, "nobody"):
        work.clear()
        with pytest.raises(Unauthenticated):
            directory.authenticate(name, "wrong")
        sums[name] = sum(work)
    largest = max(sums.values())
    # To within the smallest unit of work that can be added.
    unit = secrets.COST_MIN * secrets.BLOCK
    assert all(largest - unit < one <= largest for one in sums.values()), sums


def test_a_wrong_secret_is_remembered_as_wrong_until_the_users_change(file: Path) -> None:
    directory = Directory(Node(users_file=str(file)))
    for name in ("bob", "nobody"):
        assert not directory.is_known_wrong(name, "wrong")
        with pytest.raises(Unauthenticated):
            directory.authenticate(name, "wrong")
        assert directory.is_known_wrong(name, "wrong")
        assert not directory.is_known_wrong(name, "wrong too")
    assert not directory.is_known_wrong("bob", "x" * 2_000)
    written(file, ("bob", cheaply("wrong")), ("nobody", cheaply("wrong")))
    assert reloaded(directory)
    for name in ("bob", "nobody"):
        assert not directory.is_known_wrong(name, "wrong")
        assert directory.authenticate(name, "wrong").name == name


def test_wrong_secrets_that_are_remembered_are_bounded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRONG_MAX", 2)
    directory = Directory(Node(users_file=str(file)))
    for secret in "abc":
        with pytest.raises(Unauthenticated):
            directory.authenticate("bob", secret)
    assert [directory.is_known_wrong("bob", secret) for secret in "abc"] == [False, True, True]


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(InvalidSetting, match="257 letters"):
        Directory(Node(users={"x" * 257: User(secret=ALICE)}))
