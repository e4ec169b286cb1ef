"""Checkpoints beside others: files of another kind or run, two runs at once, and disks that are full or cannot be read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.sampling import checkpoint, journal
from equipoise.sampling.checkpoint import fingerprint
from tests.sampling.kept import DIM, DRAWS, Run, keeper, resumed, same, saved

# files of others


def test_files_of_another_kind_are_named_and_left_alone(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    np.savez(tmp_path / "old.npz", key="x", draws=np.ones(3))
    later = checkpoint._OPENING.replace(b"3", b"4")
    not_one = "must be a file written by Equipoise; run.ckpt is not readable as one"
    contents = {
        (
            tmp_path / "old.npz"
        ).read_bytes(): "run.ckpt is a checkpoint of version 0.1, which this version cannot resume",
        later + bytes(100): "run.ckpt is a checkpoint of another version of Equipoise",
        b"text": not_one,
        b"\x93NUMPY" + bytes(200): not_one,
        bytes(1000): not_one,
    }
    for content, reason in contents.items():
        path.write_bytes(content)
        with pytest.raises(
            eq.CheckpointMismatch, match=f"^checkpoint: {reason}.* To fix: delete it or name another file"
        ):
            resumed(path)
        assert path.read_bytes() == content


def test_another_run_is_told_from_another_layout(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    whole = path.read_bytes()
    with keeper(path, "other key") as kept, pytest.raises(eq.CheckpointMismatch, match="belongs to another run"):
        kept.restore(*Run().arguments())
    for name, value in {
        "position": np.zeros(DIM + 1),
        "order": np.arange(5, dtype=np.int32),
        "step": 0.0,
        "nothing": np.empty((0, 1)),
    }.items():
        run = Run()
        setattr(run.states[1], name, value)
        with keeper(path) as kept, pytest.raises(eq.CheckpointMismatch, match="whose chains hold other things"):
            kept.restore(*run.arguments())
    short = Run()
    short.draws = short.draws[:, :-1].copy()
    with keeper(path) as kept, pytest.raises(eq.CheckpointMismatch, match="whose chains hold other things"):
        kept.restore(*short.arguments())
    assert path.read_bytes() == whole


def test_a_state_that_cannot_be_saved_is_a_fault_of_the_engine(tmp_path) -> None:
    run = Run()
    run.states[0].nothing = [object()]  # type: ignore[assignment]
    with keeper(tmp_path / "run.ckpt") as kept, pytest.raises(TypeError, match="nothing is not"):
        kept.restore(*run.arguments())


def test_the_fingerprint_sees_every_part() -> None:
    options, arrays = {"seed": 1, "guard": np.inf, "engine": "x"}, (np.arange(4.0), np.arange(3))
    found = {
        fingerprint(options, *arrays),
        fingerprint({**options, "seed": 2}, *arrays),
        fingerprint({**options, "engine": "y"}, *arrays),
        fingerprint({"seed": 1, "engine": "x"}, *arrays),
        fingerprint(options, arrays[0], arrays[1] + 1),
        fingerprint(options, arrays[1], arrays[0]),
        fingerprint(options, arrays[0].reshape(2, 2), arrays[1]),
        fingerprint(options, arrays[0].view(np.int64), arrays[1]),
        fingerprint(options, arrays[0]),
    }
    assert len(found) == 9
    spaced = np.repeat(arrays[0], 2)[::2]
    assert fingerprint(options, spaced, arrays[1]) == fingerprint(dict(reversed(options.items())), *arrays)


# two runs at once


HOLD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from equipoise.sampling.checkpoint import Checkpoint
    with Checkpoint(Path(sys.argv[1]), "the key", 0.0):
        print("held", flush=True)
        sys.stdin.read()
    """
)


def test_a_file_serves_one_run_at_a_time_and_a_dead_one_never_blocks(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path)
    whole = path.read_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(eq.CheckpointMismatch, match=r"run.ckpt is being used by another process. To fix: wait"):
            resumed(path)
        assert path.read_bytes() == whole
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    assert resumed(path)[1][0] == DRAWS
    # in one process too, and only as long as the run lives
    with keeper(path), pytest.raises(eq.CheckpointMismatch, match="another process"), keeper(path):
        pass
    assert resumed(path)[1][0] == DRAWS


def test_a_refused_file_is_not_held(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    path.write_bytes(b"text")
    with pytest.raises(eq.CheckpointMismatch), keeper(path):
        pass
    path.write_bytes(b"")
    assert resumed(path)[1] == [0, 0, 0]


def test_where_there_are_no_locks_a_run_goes_on_without(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    saved(tmp_path / "run.ckpt")
    assert resumed(tmp_path / "run.ckpt")[1][0] == DRAWS


# places and disks


def test_a_place_that_cannot_be_written_is_refused_before_the_first_step(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path, tmp_path / "file" / "below", tmp_path / "pipe", Path("/proc/nowhere/run.ckpt")):
        with pytest.raises(eq.InvalidInput, match=r"^checkpoint: must be a file that can be written"), keeper(bad):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", ["write", "part", "sync"])
def test_a_disk_that_is_full_for_a_while(tmp_path, monkeypatch, fault) -> None:
    """One warning; the run goes on, the file keeps what it had, and takes the rest when there is space."""
    path, run = tmp_path / "run.ckpt", Run()
    write, sync = journal.Journal._write, os.fsync
    full, reached = False, []

    def failing(self, piece) -> None:
        if full and fault != "sync":
            if fault == "part":
                write(self, piece[: len(piece) // 2])
            raise FULL
        write(self, piece)

    def failing_sync(descriptor: int) -> None:
        if full and fault == "sync":
            raise FULL
        sync(descriptor)

    monkeypatch.setattr(journal.Journal, "_write", failing)
    monkeypatch.setattr(journal.os, "fsync", failing_sync)
    with keeper(path) as kept, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept.restore(*run.arguments())
        for now in (False, True, True, False, True):
            full = now
            run.advance(3)
            kept.save(*run.arguments())
            (tmp_path / "copy").write_bytes(path.read_bytes())
            reached.append(resumed(tmp_path / "copy")[1][0])
    assert reached == [3, 3, 3, 12, 12]
    assert [(w.category, str(w.message)) for w in caught] == [
        (
            eq.errors.EquipoiseWarning,
            "checkpoint: run.ckpt could not be written (No space left on device). The run goes on, and resumes from the save "
            "before if it is stopped; later saves try again.",
        )
    ]
    full = False
    again, steps = resumed(path)
    assert steps == [12, 12, 12]
    same(again.finish(), Run().finish())
    same(run.finish(), Run().finish())


def test_a_file_that_was_removed_is_said(tmp_path) -> None:
    path, run = tmp_path / "run.ckpt", Run()
    with keeper(path) as kept:
        kept.restore(*run.arguments())
        path.unlink()
        run.advance(1)
        with pytest.warns(eq.errors.EquipoiseWarning, match=r"could not be written \(the file was removed\)"):
            kept.save(*run.arguments())


def test_a_disk_that_is_full_from_the_start(tmp_path, monkeypatch) -> None:
    def failing(self, piece) -> None:
        raise FULL

    monkeypatch.setattr(journal.Journal, "_write", failing)
    with (
        keeper(tmp_path / "run.ckpt") as kept,
        pytest.raises(eq.InvalidInput, match=r"^checkpoint: .*No space left on device. To fix: free some space"),
    ):
        kept.restore(*Run().arguments())


def test_a_disk_that_cannot_be_read(tmp_path, monkeypatch) -> None:
    saved(tmp_path / "run.ckpt")

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal.Journal, "_read", failing)
    with pytest.raises(eq.CheckpointMismatch, match=r"run.ckpt cannot be read \(Input/output error\)"):
        resumed(tmp_path / "run.ckpt")
