"""Reading and writing files that anybody may have prepared.

What is read must be a plain file of a sensible size: a FIFO, a device or an endless file is refused in one line, and
nothing waits for it. What is written goes to a new file with a name that nobody can guess, which then takes the place
of the old one: a link that was put there is replaced, and what it points to stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from poise.errors import RunFailed, UserError

#: The most bytes that are read of a text without a limit of its own, such as a network's source.
MOST_TEXT: Final = 4 << 20
#: The most bytes that are read of a JSON document, and of one line of a journal.
MOST_DOCUMENT: Final = 128 << 20
#: The most bytes of a journal, of an image file, and of a file of a published data set.
MOST_JOURNAL: Final = 4 << 30
MOST_IMAGE: Final = 1 << 30


_TEMPORARY: Final = re.compile(r"\..*\.[0-9a-f]{16}\.poise\.tmp")
_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


# Paths ----------------------------------------------------------------------------------------------------------------


def expand_user(path: str | Path) -> Path:
    """The path with a leading `~` written out; refuses a user that does not exist, unless a file is called so."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        if os.path.lexists(path):
            return Path(path)
        raise UserError(f"{path}: there is no such user on this machine; write the path out") from error


# Reading --------------------------------------------------------------------------------------------------------------


def open_plain(path: str | Path, most: int | None = None) -> BufferedReader:
    """Open a plain file of at most so many bytes for reading; anything else is refused in one line.

    What the system refuses raises its own `OSError`.
    """
    _check_plain(path, Path(path).stat(), most)  # before it is opened: opening a device can do something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_plain(path, os.fstat(handle), most)  # what was really opened
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """What the system refuses in here is said of this file, unless it names another one itself: a read does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_bytes(path: str | Path, most: int = MOST_DOCUMENT) -> bytes:
    """All of a plain file, which has at most so many bytes."""
    with open_plain(path, most) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
        while len(data) > size:  # it has no size of its own, like a file in /proc, or it grows
            size = 2 * len(data)
            data += file.read(size + 1 - len(data))
            if len(data) > most:
                raise _too_large(path, most)
    return data


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """All of a plain text file in UTF-8, which has at most so many bytes; its line ends become newlines."""
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def digest_of_text(path: str | Path) -> str:
    """A digest of a text file's bytes, such as somebody's source."""
    return hashlib.blake2b(read_bytes(path, MOST_TEXT), digest_size=16).hexdigest()


def refuse_other_kinds(path: str | Path, most: int) -> None:
    """Refuse a path at which there is no plain file of at most so many bytes, for what opens it by its path.

    Where nobody may look, it is the system's own `PermissionError`.
    """
    try:
        found = Path(path).stat()
    except PermissionError:
        raise
    except OSError as error:
        broken = describe(path) == "a broken link"
        fault = "is a broken link, not a file; mend or remove it" if broken else "does not exist"
        raise UserError(f"{path} {fault}") from error
    _check_plain(path, found, most)


def describe(path: str | Path) -> str:
    """What there is at a path, in words: `a plain file`, `a folder`, `a FIFO`, `a broken link`, `nothing` and so on."""
    try:
        return _kind(Path(path).stat())
    except OSError:
        return "a broken link" if os.path.islink(path) else "nothing"  # noqa: PTH114 - pathlib's may raise


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "a plain file")


def _check_plain(path: str | Path, found: os.stat_result, most: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is {_kind(found)}, not a file; replace or remove it")
    if most is not None and found.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> UserError:
    size = f"{most >> 30} GiB" if most >= 1 << 30 else f"{most >> 20} MiB"
    return UserError(f"{path} is larger than the {size} that are read of such a file; check what it is")


# Writing --------------------------------------------------------------------------------------------------------------


def write_bytes(
    path: Path,
    data: bytes,
    *,
    sync: bool = True,
    like: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Put `data` at `path` atomically: a new temporary file, fsync, rename, fsync of the folder.

    A link at `path` is replaced and not followed. Temporary files that killed processes left in the folder are removed.
    Without `sync` the disk is not waited for: for what can be made again. The new file has the permissions of the one
    that it replaces, or of the one at `like`, where there is one. An error of the system names `path`. `check` is
    called in the last moment before the new file takes its place, and may refuse it: then the old one stays.
    """
    _refuse_special(path)
    old = _plain_at(like) or _plain_at(path)
    try:
        temporary, file = _open_new(path, 0o600 if old else 0o666)
        try:
            with file:
                file.write(data)
                file.flush()
                if old:
                    _copy_permissions(file.fileno(), old)
                if sync:
                    os.fsync(file.fileno())
                check()
                temporary.replace(path)  # still locked
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename = str(path)
        del error.filename2  # set to None, it would still be printed
        raise
    _remove_abandoned(path.parent)
    if sync:
        _sync_folder(path.parent)


def is_disk_full(error: BaseException) -> bool:
    """Whether it says that the disk is full, or that this user has no room left on it (a quota)."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def explain_refusal(error: OSError, again: str) -> str:
    """What the system refused, where, and what to do where we know it, in one line; `again` is how to try it again."""
    if is_disk_full(error):
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}; free some, then {again} (nothing that was saved is lost)"
    return f"{error.filename or 'the system'}: {error.strerror or error}; nothing that was saved is lost"


@contextlib.contextmanager
def explaining_refusals(again: str) -> Iterator[None]:
    """What the system refuses in here is an error of our own, with the line of `explain_refusal`."""
    try:
        yield
    except OSError as error:
        raise RunFailed(explain_refusal(error, again)) from error


def reserve(handle: int, count: int) -> None:
    """Make an open file so many bytes long, with room for all of them: a mapped one that finds none ends the process.

    Raises the system's own `OSError` where there is no room, or where files may not be so long.
    """
    there = os.fstatvfs(handle)
    if count > there.f_bavail * there.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.truncate(handle, count)
    try:
        os.posix_fallocate(handle, 0, count)
    except OSError as error:
        if is_disk_full(error) or error.errno == errno.EFBIG:
            raise  # where the disk cannot tell, it is as it was


def open_to_append(path: Path) -> BinaryIO:
    """Open a plain file for appending and reading, made if it is not there; a link is refused and not followed."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path} is {_kind(found)}, not a file; nothing is written there: remove it first")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    return os.fdopen(handle, "a+b")


def make_folder(path: Path) -> None:
    """Make a folder and those above it. One that is there is fine, a link to one is not: files would go elsewhere."""
    if path.is_symlink():
        raise UserError(f"{path} is a link; nothing is written through it: remove it, or put a folder there")
    path.mkdir(parents=True, exist_ok=True)


def is_at(file: BinaryIO, path: Path) -> bool:
    """Whether this open file is still the one at that path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def file_word(text: str) -> str:
    """A text as a part of a file's name: nothing that leaves its folder, hides it, or means something in an address.

    What has to be changed gets a few digits of its hash, so that two texts never have the same word.

    >>> file_word("tiny-imagenet-100")
    'tiny-imagenet-100'
    >>> file_word("../../a b")
    'a b-d12089d8'
    """
    plain = re.sub(r"[^\w .+-]", "-", text).strip(" .-")
    if plain and plain == text and len(plain.encode()) <= 120:
        return text
    short = plain.encode()[:100].decode(errors="ignore")
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return f"{short}-{digest}".strip("-")


def _refuse_special(path: Path) -> None:
    """A device or a FIFO would be replaced by a file."""
    try:
        found = Path(path).stat()
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path} is {_kind(found)}; give the name of a file")


def _plain_at(path: Path | None) -> os.stat_result | None:
    """What the system says of a plain file; None where there is none, and for a link."""
    try:
        found = os.lstat(path) if path is not None else None
    except OSError:
        return None
    return found if found is not None and stat.S_ISREG(found.st_mode) else None


def _copy_permissions(handle: int, old: os.stat_result) -> None:
    """Give an open file of ours the owner, the group and the permissions of an older one, and never more than those."""
    mode, new = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(handle)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid if os.geteuid() == 0 else -1, old.st_gid)
        except OSError:  # a group that we are not in: what it may do, ours must not
            mode &= 0o707 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # a disk without permissions
        os.fchmod(handle, mode)


def _open_new(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, locked for as long as it is open, so that others see that it is being written."""
    start = os.fsdecode(os.fsencode(path.name)[:200])  # all of it must be short enough for a file's name
    while True:
        temporary = path.with_name(f".{start}.{secrets.token_hex(8)}.poise.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.fdopen(os.open(temporary, flags, mode), "wb")
        if _lock(file.fileno(), where_there_are_none=True) and os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # taken for an abandoned one, in the moment before it was locked
        temporary.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files whose writer is gone, as far as the folder lets us."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    except OSError:  # it can be written to and not listed
        return
    for name in found:
        try:
            handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if _lock(handle, where_there_are_none=False):
                with contextlib.suppress(OSError):
                    Path(name).unlink()
        finally:
            os.close(handle)


def _lock(handle: int, *, where_there_are_none: bool) -> bool:
    """Lock an open file without waiting; whether it worked. Some network disks have no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return where_there_are_none and error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
