"""Files: old or new and whole whatever happens in between, refused at the door where nothing can be written."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import equipoise as eq
from equipoise import files
from equipoise.files import file_place, lock, require_writable, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_bytes_or_what_a_function_writes(tmp_path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    assert write_atomic(path, b"one") == path
    assert path.read_bytes() == b"one"
    write_atomic(str(path), lambda stream: stream.write(b"two"))
    assert path.read_bytes() == b"two"

    def closing(stream) -> None:
        stream.write(b"three")
        stream.close()

    write_atomic(path, closing)
    assert path.read_bytes() == b"three"
    assert names(path.parent) == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="modes and links")
def test_mode_and_links_are_kept(tmp_path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    before = os.umask(0o027)
    try:
        write_atomic(path, b"new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        link.symlink_to(path)
        seen = []

        def write(stream) -> None:
            seen.append(stat.S_IMODE(os.fstat(stream.fileno()).st_mode))
            stream.write(b"newer")

        write_atomic(link, write)
    finally:
        os.umask(before)
    assert seen == [0o604]
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert link.is_symlink()
    assert path.read_bytes() == b"newer"


def test_a_name_of_the_greatest_length(tmp_path) -> None:
    path = tmp_path / ("n" * 255)
    write_atomic(path, b"x")
    assert path.read_bytes() == b"x"
    for check in (lambda p: write_atomic(p, b"x"), require_writable):
        with pytest.raises(eq.InvalidInput, match="To fix: choose a shorter name"):
            check(tmp_path / ("n" * 256))


class Broken(Exception):
    """A fault of the writer itself."""


@pytest.mark.parametrize("fault", [Broken(), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, fault) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def write(stream) -> None:
        stream.write(b"half of the n")
        raise fault

    with pytest.raises(eq.InvalidInput if isinstance(fault, OSError) else type(fault)) as caught:
        write_atomic(path, write, "report")
    if isinstance(fault, OSError):
        assert str(caught.value) == (
            f"report: must be a file that can be written; got '{path}': No space left on device. "
            "To fix: free some space, or name a file on another disk."
        )
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_disk_that_fills_while_the_buffer_is_written_out(tmp_path, monkeypatch) -> None:
    # what is written goes to the device that is always full, as late as the system says so
    fill = files._fill

    def full(raw, content) -> None:
        with open("/dev/full", "wb", buffering=0) as device:
            fill(device, content)

    monkeypatch.setattr(files, "_fill", full)
    for call in (lambda: write_atomic(tmp_path / "file", b"x" * 10), lambda: require_writable(tmp_path / "file")):
        with pytest.raises(eq.InvalidInput, match="No space left on device"):
            call()
    assert names(tmp_path) == []


@pytest.mark.parametrize("fault", ["fsync", "replace"])
def test_a_fault_of_the_system_leaves_the_old_file_alone(tmp_path, monkeypatch, fault) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.os, fault, fail)
    with pytest.raises(eq.InvalidInput, match=r"path: must be a file that can be written; got .*Input/output error"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_places_where_nothing_can_be_written(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    bad = {
        str(tmp_path): "Is a folder. To fix: name a file in this folder",
        "": "Is a folder",
        str(
            tmp_path / "file" / "below"
        ): "Not a directory. To fix: name a file in a folder; part of this path is a file",
        str(tmp_path / "file" / "far" / "below"): "Not a directory",
        str(tmp_path / "pipe"): "Is not a regular file",
        str(tmp_path / "loop"): "Too many levels of symbolic links",
        "/dev/null": "Is not a regular file",
        "nul\0": "must be the path of a file",
        "/proc/nowhere/file": "No such file or directory",
    }
    for path, reason in bad.items():
        for call in (lambda p: write_atomic(p, b"new", "save"), lambda p: require_writable(p, "save")):
            with pytest.raises(eq.InvalidInput, match=f"^save: .*{reason}"):
                call(path)
    with pytest.raises(eq.InvalidInput, match="path: must be the path of a file; got 3"):
        file_place(3)  # type: ignore[arg-type]
    assert names(tmp_path) == ["file", "loop", "pipe"]
    assert (tmp_path / "file").read_bytes() == b"old"
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


AS_NOBODY = """
import os, sys
from equipoise.errors import InvalidInput
from equipoise.files import require_writable, write_atomic
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    for call in (lambda: write_atomic(path, b"new"), lambda: require_writable(path)):
        try:
            call()
            print("written")
        except InvalidInput as error:
            print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_folders_and_files_without_the_right_to_write(tmp_path) -> None:
    closed, kept, hidden = tmp_path / "closed", tmp_path / "open" / "kept", tmp_path / "hidden"
    closed.mkdir()
    kept.parent.mkdir()
    hidden.mkdir()
    kept.write_bytes(b"old")
    for place, mode in ((kept, 0o444), (kept.parent, 0o777), (closed, 0o555), (hidden, 0o000)):
        place.chmod(mode)
    if os.getuid() == 0:  # the rights of root have no limits, so another asks, who must be able to get here
        for parent in [tmp_path, *tmp_path.parents][:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
    places = [closed / "file", closed / "deep" / "file", kept, hidden / "file"]
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, places)], capture_output=True, text=True, check=True
    )
    hidden.chmod(0o700)
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert all("Permission denied. To fix: name a file in a folder you may write to" in line for line in lines), lines
    assert (names(closed), names(kept.parent), kept.read_bytes()) == ([], ["kept"], b"old")


def test_a_test_of_a_place_leaves_nothing(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    stamp = (tmp_path / "file").stat()
    assert require_writable(tmp_path / "file") == tmp_path / "file"
    require_writable(tmp_path / "not" / "yet" / "there")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
    assert (tmp_path / "file").stat().st_mtime_ns == stamp.st_mtime_ns


def test_a_lock_is_held_once_and_freed_by_closing(tmp_path) -> None:
    with (tmp_path / "file").open("w+b") as one, (tmp_path / "file").open("r+b") as other:
        assert lock(one.fileno()) is True
        assert lock(other.fileno()) is False
        one.close()
        assert lock(other.fileno()) is True


def test_where_open_files_cannot_be_renamed(tmp_path, monkeypatch) -> None:
    """They are closed first; nobody can tell then whether the writer of a temporary lives, so none is swept."""
    monkeypatch.setattr(files, "_RENAMES_OPEN_FILES", False)
    replace, closed = os.replace, []

    def watched(source, target) -> None:
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        closed.append(str(source) not in opened)
        replace(source, target)

    if Path("/proc/self/fd").exists():
        monkeypatch.setattr(files.os, "replace", watched)
    stale = tmp_path / f"{files._prefix(tmp_path / 'file')}0123456789abcdef.partial"
    stale.write_bytes(b"another's")
    write_atomic(tmp_path / "file", b"new")
    assert names(tmp_path) == [stale.name, "file"]
    assert (tmp_path / "file").read_bytes() == b"new"
    assert all(closed)


def test_where_there_are_no_locks(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    stale = tmp_path / f"{files._prefix(tmp_path / 'file')}0123456789abcdef.partial"
    stale.write_bytes(b"another's")
    write_atomic(tmp_path / "file", b"new")
    # nobody can tell whether its writer lives, so it stays
    assert names(tmp_path) == [stale.name, "file"]


def test_only_what_dead_writers_of_this_file_left_is_removed(tmp_path) -> None:
    path = tmp_path / "file"
    dead, alive, other = (
        tmp_path / f"{files._prefix(tmp_path / name)}{'0' * 15}{digit}.partial"
        for name, digit in (("file", 1), ("file", 2), ("other", 3))
    )
    for stale in (dead, alive, other):
        stale.write_bytes(b"half")
    with alive.open("r+b") as stream:
        assert lock(stream.fileno())
        write_atomic(path, b"new")
        assert names(tmp_path) == sorted([alive.name, other.name, "file"])
    write_atomic(path, b"newer")
    assert names(tmp_path) == sorted([other.name, "file"])


def test_one_that_sweeps_just_after_the_temporary_is_made(tmp_path, monkeypatch) -> None:
    """The writer finds its temporary gone, or locked by who is about to remove it, and makes another."""
    path, calls = tmp_path / "file", []
    true_lock = files.lock

    def swept(descriptor: int) -> bool | None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / names(tmp_path)[0]).unlink()
        return False if len(calls) == 2 else true_lock(descriptor)

    monkeypatch.setattr(files, "lock", swept)
    write_atomic(path, b"new")
    assert len(calls) == 3
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


# A process that starts others, each of which writes until it is killed: imports are paid for once.
KILLED = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from equipoise.files import write_atomic
    from tests.damage import killed

    path = Path(sys.argv[1])
    contents = [bytes([k]) * size for k, size in enumerate((1, 300_000, 20_000, 1_000_000))]
    write_atomic(path, contents[0])
    most, changed = 0, 0

    def write(told):
        for content in contents:
            write_atomic(path, content)
            told()

    for kill in killed(write, 45, most=5, pause=0.003, seed=7):
        found = path.read_bytes()
        assert found in contents, f"kill {kill}: {len(found)} bytes"
        left = len(list(path.parent.iterdir())) - 1
        assert left <= 1, f"kill {kill}: {left} temporaries"
        most, changed = max(most, left), changed + (found != contents[0])
        write_atomic(path, contents[0])
        assert list(path.parent.iterdir()) == [path], "a temporary of a dead process stays"
    print(most, changed)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_kill_at_any_moment_leaves_old_or_new(tmp_path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    most, changed = map(int, done.stdout.split())
    # kills did come in the middle of writes, and writers did get on
    assert most == 1
    assert changed > 10
