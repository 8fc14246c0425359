"""Files that somebody prepared: what is read and what is written, with real links, FIFOs, devices and sockets."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poise import files, locks, store
from poise.errors import Damaged, UserError
from poise.journal import Journal, read_journal

ZERO = Path("/dev/zero")
WRITE_WITHOUT_SPACE = """
import resource, sys
from pathlib import Path
from poise import files
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    files.write_bytes(Path(sys.argv[1]), bytes(100_000))
except OSError as error:
    print(error.errno)
"""


def socket_at(path: Path) -> None:
    """A socket that nobody listens to; the path of one must be short."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def endless(path: Path) -> None:
    """A file that seems to have a terabyte, and needs no room."""
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to(ZERO),
    "a socket": socket_at,
    "a folder": Path.mkdir,
    "larger than": endless,
}


@pytest.fixture(params=KINDS)
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Something in the place of a file, and the words for it."""
    kind = str(request.param)
    KINDS[kind](tmp_path / "trap")
    return tmp_path / "trap", kind


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        files.read_bytes,
        files.read_text,
        store.read_json,
        lambda path: list(read_journal(path)),
        lambda path: store.read_tensors(path, kind="learner"),
    ],
)
def test_nothing_but_a_plain_file_is_read(read: Callable[[Path], object], trap: tuple[Path, str]) -> None:
    path, words = trap
    with pytest.raises(UserError, match=words) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_size_is_read_up_to_the_limit(tmp_path: Path) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system has no /proc")
    assert files.read_bytes("/proc/self/stat").split()[0] == str(os.getpid()).encode()
    with pytest.raises(UserError, match="larger than"):
        files.read_bytes("/proc/self/maps", 100)


def test_a_plain_file_is_read_whole_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size in (0, 1, 4096, 100_000):
        path.write_bytes(b"x" * size)
        assert files.read_bytes(path, size) == b"x" * size
        if size:
            with pytest.raises(UserError, match="larger than"):
                files.read_bytes(path, size - 1)


def test_a_reserved_file_has_room_for_all_of_its_bytes(tmp_path: Path) -> None:
    """Else a process that maps it is ended by the system when the disk gets full meanwhile."""
    with (tmp_path / "file").open("w+b") as file:
        files.reserve(file.fileno(), 3_000_000)
        found = os.fstat(file.fileno())
        assert found.st_size == 3_000_000
        assert found.st_blocks * 512 >= 3_000_000
        with pytest.raises(OSError, match="No space left"):
            files.reserve(file.fileno(), 1 << 60)


def test_what_is_missing_is_the_systems_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "nothing")
    (tmp_path / "link").symlink_to("nothing")
    assert files.describe(tmp_path / "link") == "a broken link"
    with pytest.raises(UserError, match="is a broken link"):
        store.read_tensors(tmp_path / "link", kind="learner")


def test_a_line_of_a_journal_without_an_end_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_DOCUMENT", 1000)
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append({"event": "one"})
    journal.close()
    with path.open("ab") as file:
        file.write(b" " * 5000)
    with pytest.raises(Damaged, match="line 3 has no end"):
        list(read_journal(path))


# Writing --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody else's file, which links point to."""
    path = tmp_path / "elsewhere" / "victim"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    return path


def test_a_write_that_fails_midway_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", WRITE_WITHOUT_SPACE, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip(), "the write was meant to fail"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["some.json"]  # noqa: PTH208


def test_what_is_refused_in_the_last_moment_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def refuse() -> None:
        raise UserError("not now")

    with pytest.raises(UserError, match="not now"):
        files.write_bytes(path, b"new", check=refuse)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_what_a_killed_writer_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".some.json.{7:016x}.poise.tmp").write_bytes(b"half of a long docum")
    files.write_bytes(tmp_path / "some.json", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.json"]
    assert (tmp_path / "some.json").read_bytes() == b"new"


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        files.write_bytes(tmp_path / "taken", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o400])
def test_a_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    path, beside = tmp_path / "model", tmp_path / "model.pending"
    path.write_bytes(b"old")
    path.chmod(mode)
    files.write_bytes(path, b"new")
    files.write_bytes(beside, b"some of it", like=path)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, beside)] == [mode, mode]
    assert path.read_bytes() == b"new"


def test_a_new_file_has_the_permissions_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_bytes(tmp_path / "new", b"new", like=tmp_path / "nothing")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_file_is_not_opened_to_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o664)
    found = os.lstat(path)
    other = os.stat_result([*found[:5], found.st_gid + 1, *found[6:]])
    monkeypatch.setattr(files, "_plain_at", lambda path: path and other)
    monkeypatch.setattr(os, "fchown", refuse_to_chown)
    files.write_bytes(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def refuse_to_chown(handle: int, user: int, group: int) -> None:
    """As the system does for a group that one is not in."""
    raise PermissionError(handle, user, group)


@pytest.mark.parametrize("moment", ["write", "replace", "open"])
def test_an_error_of_the_system_names_the_file_and_not_a_temporary_one(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "temporary" if moment == "open" else None)

    owner, name = {"write": (os, "fsync"), "replace": (Path, "replace"), "open": (os, "open")}[moment]
    with monkeypatch.context() as full:
        full.setattr(owner, name, fail)
        with pytest.raises(OSError, match="No space left") as caught:
            files.write_bytes(tmp_path / "some.json", b"new")
    assert caught.value.filename == str(tmp_path / "some.json")
    assert str(caught.value).endswith("some.json'"), "and no other one"
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_without_room_for_all_or_for_this_user() -> None:
    assert all(files.is_disk_full(OSError(number, "full")) for number in (errno.ENOSPC, errno.EDQUOT))
    for other in (OSError(errno.EACCES, "refused"), OSError("of no number"), ValueError(errno.ENOSPC)):
        assert not files.is_disk_full(other)


def test_a_link_is_replaced_and_not_followed(victim: Path, tmp_path: Path) -> None:
    link = tmp_path / "some.json"
    link.symlink_to(victim)
    store.write_json(link, {"new": 1})
    assert victim.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert store.read_json(link) == {"new": 1}


def test_links_at_names_that_could_be_guessed_are_not_followed(victim: Path, tmp_path: Path) -> None:
    guesses = [".some.json.tmp", "some.json.tmp", ".some.json.poise.tmp", f".some.json.{0:016x}.poise.tmp"]
    for name in guesses:
        (tmp_path / name).symlink_to(victim)
    store.write_json(tmp_path / "some.json", {"new": 1})
    assert victim.read_bytes() == b"precious"
    assert store.read_json(tmp_path / "some.json") == {"new": 1}


def test_no_temporary_name_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    replace = Path.replace

    def noted(self: Path, target: Path) -> Path:
        used.append(self.name)
        assert stat.S_ISREG(self.lstat().st_mode)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    for _ in range(50):
        files.write_bytes(tmp_path / "file", b"x", sync=False)
    assert len(set(used)) == 50
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_temporary_file_that_is_there_already_is_never_opened(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".some.json.{0:016x}.poise.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        store.write_json(tmp_path / "some.json", {})
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("target", ["victim", "not there yet"])
def test_journals_and_locks_follow_no_link(victim: Path, target: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(victim.with_name(target))
    with pytest.raises(UserError, match="is a link"):
        Journal(link).append({"event": "x"})
    with pytest.raises(UserError, match="is a link"), locks.locked(link, "is busy", sign=True):
        pass
    if target == "victim":
        with pytest.raises(UserError, match="is a link"):
            Journal(link).rewind(0)
    assert victim.read_bytes() == b"precious"
    assert [entry.name for entry in victim.parent.iterdir()] == ["victim"]


@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a socket"])
def test_a_special_file_is_not_written_to_nor_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trap"
    KINDS[kind](path)
    with pytest.raises(UserError, match=kind):
        files.write_bytes(path, b"x")
    with pytest.raises(UserError, match="nothing is written there"):
        files.open_to_append(path)
    assert not path.is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == ["trap"]


def test_a_folder_is_not_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UserError, match="is a link"):
        files.make_folder(tmp_path / "link")
    files.make_folder(tmp_path / "link" / "below")  # the user's own path may have links in it
    files.make_folder(tmp_path / "link" / "below")


KILLED = """
import os, signal, sys
from pathlib import Path
from poise import files
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
files.write_bytes(Path(sys.argv[1]), b"half")
"""
WRITING = """
import sys, time
from pathlib import Path
from poise import files
def wait(self, target):
    print("ready", flush=True)
    sys.stdin.readline()
    return replace(self, target)
replace, Path.replace = Path.replace, wait
files.write_bytes(Path(sys.argv[1]), b"theirs")
"""


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "one")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    other = [sys.executable, "-c", WRITING, str(tmp_path / "two")]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "ready\n"
        files.write_bytes(tmp_path / "three", b"ours")
        assert len(list(tmp_path.iterdir())) == 2, "the one that is being written, and ours"
        writing.communicate("go\n")
    assert writing.returncode == 0
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"two": b"theirs", "three": b"ours"}


def test_the_longest_name_that_a_file_may_have_can_be_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "ö" * 127, "犬" * 85):
        files.write_bytes(tmp_path / name, b"x")
        assert (tmp_path / name).read_bytes() == b"x"


def test_names_that_are_no_utf_8_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    path = tmp_path / name
    store.write_json(path, {"name": name, name: ["Größe"]})
    assert store.read_json(path) == {"name": name, name: ["Größe"]}
    json.loads(path.read_text(encoding="utf-8"))
    journal = Journal(tmp_path / "journal")
    journal.append({"event": name})
    journal.close()
    assert list(read_journal(tmp_path / "journal")) == [{"event": name}]
    store.write_tensors(path, {}, {"classes": [name]}, kind="learner")
    assert store.read_tensors(path, kind="learner") == ({}, {"classes": [name]})


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["../up", "/etc/passwd", "..", ".", "", ".hidden", "a/b", "a\\b", "a\0b", "a\nb", "x" * 5000, "犬" * 300, "#?%&"],
)
def test_no_text_leaves_its_folder_as_a_file_word(text: str, tmp_path: Path) -> None:
    word = files.file_word(text)
    (tmp_path / f"{word}.csv").write_text("")
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{word}.csv"]
    assert word
    assert not word.startswith(".")
    assert files.file_word(word) == word


def test_file_words_differ_as_their_texts_do() -> None:
    texts = ["a/b", "a-b", "a:b", "a?b", "a b", "A b", "../a-b", ""]
    assert len({files.file_word(text) for text in texts}) == len(texts)
    for plain in ("cifar100", "tiny-imagenet-100", "Größe", "my images", "aanets+rmm", "v1.2"):
        assert files.file_word(plain) == plain


def test_a_tilde_is_the_home_folder_or_a_users_and_may_begin_a_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert files.expand_user("~/model") == tmp_path / "model"
    assert files.expand_user("model~") == Path("model~")
    with pytest.raises(UserError, match="there is no such user on this machine"):
        files.expand_user("~nosuchuser.png")
    Path("~nosuchuser.png").touch()
    assert files.expand_user(Path("~nosuchuser.png")) == Path("~nosuchuser.png")
