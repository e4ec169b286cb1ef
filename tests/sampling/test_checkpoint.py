"""Checkpoints: the draws of a run that was never interrupted, whatever happens to it or to its file; or a refusal."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.sampling import checkpoint, journal
from tests.damage import flipped, put
from tests.sampling.kept import CHAINS, DIM, DRAWS, Run, keeper, resumed, same, saved


@pytest.fixture
def quick(monkeypatch) -> None:
    """Without waiting for the disk, which tests of what is read do not need."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("saves", range(7))
def test_a_run_resumes_with_every_field_and_every_draw(tmp_path, saves, lost) -> None:
    path = tmp_path / "made" / "run.ckpt"
    saved(path, saves, lost=lost)
    run, steps = resumed(path, lost)
    if not saves:
        assert steps == [0, 0, 0]
        np.testing.assert_array_equal(run.draws, 7.0)
    else:
        assert steps[0] == min(5 * saves, DRAWS)
        assert run.diverged == [False, False, lost and saves >= 5]
    same(run.finish(), Run(lost).finish())
    assert [p.name for p in path.parent.iterdir()] == ["run.ckpt"]


def test_a_run_resumes_many_times(tmp_path) -> None:
    expected, path, steps = Run().finish(), tmp_path / "run.ckpt", []
    for _ in range(40):
        run = Run()
        with keeper(path) as kept:
            kept.restore(*run.arguments())
            steps.append(run.states[2].step)
            run.advance(1)
            kept.save(*run.arguments())
    assert steps == [*range(36), 36, 36, 36, 36]
    same(run, expected)


def test_appending_costs_what_is_new_and_nothing_is_written_twice(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    first = path.parent / "copy"
    sizes = saved(path, 2, 6)
    first.write_bytes(path.read_bytes())
    run = Run()
    with keeper(path) as kept:
        kept.restore(*run.arguments())
        before = sum(run.written)
        for _ in range(2):  # the second has nothing new
            run.advance(3 if before == sum(run.written) else 0)
            kept.save(*run.arguments(), force=True)
    overhead = len(checkpoint._snapshot(*run.arguments()[:1], *run.arguments()[2:])) + 24 + 48
    assert path.read_bytes().startswith(first.read_bytes())
    new = sum(run.written) - before
    assert new > 0
    assert path.stat().st_size - sizes[-1] == overhead + new * DIM * 8
    # a finished run that is run again leaves its file alone
    run.finish()
    with keeper(path) as kept:
        kept.restore(*Run().arguments())
        kept.save(*run.arguments(), force=True)
    whole = path.read_bytes()
    again, _ = resumed(path)
    with keeper(path) as kept:
        kept.restore(*again.arguments())
        kept.save(*again.arguments(), force=True)
    assert path.read_bytes() == whole


def test_saves_wait_until_they_are_due(tmp_path, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: clock[0])
    run, path, sizes = Run(), tmp_path / "run.ckpt", []
    with keeper(path, seconds=2.0) as kept:
        kept.restore(*run.arguments())
        for wait in (1.9, 0.2, 1.9, 0.2):
            clock[0] += wait
            run.advance(1)
            before = path.stat().st_size
            kept.save(*run.arguments())
            sizes.append(path.stat().st_size - before)
    assert [size > 0 for size in sizes] == [False, True, False, True]
    # large states are saved less often, so that they do not fill the disk
    monkeypatch.setattr(checkpoint, "_SMALL_STATES", 0)
    monkeypatch.setattr(checkpoint, "_STATE_BYTES_PER_SECOND", 50.0)
    with keeper(path, seconds=2.0) as kept:
        kept.restore(*run.arguments())
        run.advance(1)
        clock[0] += 2.1
        kept.save(*run.arguments())
        assert path.stat().st_size == before + sizes[-1]
        clock[0] += 100.0
        kept.save(*run.arguments())
        assert path.stat().st_size > before + sizes[-1]


# files that were cut short or changed


def test_a_file_cut_at_any_length_resumes_from_the_last_whole_save(tmp_path, quick) -> None:
    path, expected = tmp_path / "run.ckpt", Run().finish()
    sizes = saved(path, 3)
    whole = path.read_bytes()
    reached = []
    for length in range(len(whole) + 1):
        put(path, whole[:length])
        run, steps = resumed(path)
        kept = max((size for size in sizes if size <= length), default=sizes[0])
        assert path.read_bytes() == whole[:kept], "what was torn is cut off"
        reached.append(steps[0])
        if length % 64 == 0 or length in sizes:
            same(run.finish(), expected)
    changes = [k for k in range(1, len(reached)) if reached[k] != reached[k - 1]]
    assert changes == sizes[1:]
    assert reached[-1] == DRAWS


def test_a_tail_that_never_reached_the_disk_is_dropped(tmp_path) -> None:
    """After a power cut a file may have its length, and zeros or old blocks where the last write should be."""
    path, expected = tmp_path / "run.ckpt", Run().finish()
    sizes = saved(path, 3)
    whole, start = path.read_bytes(), sizes[-2]
    tails = [bytes(len(whole) - start), bytes(24) + whole[start + 24 :], whole[start:-60] + bytes(60)]
    tails += [whole[start : start + 40] + bytes(30) + whole[start + 70 :], bytes(5000), os.urandom(3000)]
    for tail in tails:
        path.write_bytes(whole[:start] + tail)
        run, _ = resumed(path)
        assert run.states[0].step == 10
        assert path.read_bytes() == whole[:start]
        same(run.finish(), expected)


@pytest.mark.parametrize(("lost", "header", "flips"), [(False, True, 3200), (True, False, 800)])
def test_no_flipped_bit_changes_a_draw(tmp_path, quick, lost, header, flips) -> None:
    path, expected = tmp_path / "run.ckpt", Run(lost).finish()
    sizes = saved(path, 4 if lost else 6, 6, lost)
    whole = path.read_bytes()
    rng = random.Random(11)
    bits = {*range(8 * sizes[0] * header), *rng.sample(range(8 * len(whole)), flips)}
    refused, dropped = 0, 0
    for bit in sorted(bits):
        put(path, flipped(whole, bit))
        if bit // 8 < sizes[-2]:
            with pytest.raises(eq.CheckpointMismatch, match=r"^checkpoint: .*run.ckpt.*To fix: delete it"):
                resumed(path, lost)
            assert path.read_bytes() == flipped(whole, bit), "a file that is refused is left alone"
            refused += 1
        else:
            run, _ = resumed(path, lost)
            assert run.written != expected.written
            same(run.finish(), expected)
            dropped += 1
    assert refused > 0.6 * flips
    assert dropped > 0.05 * flips


def test_flips_in_a_file_without_a_save_start_the_run_again_or_are_refused(tmp_path, quick) -> None:
    path = tmp_path / "run.ckpt"
    saved(path, 0)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        put(path, flipped(whole, bit))
        try:
            _, steps = resumed(path)
        except eq.CheckpointMismatch:
            assert bit // 8 < len(checkpoint._OPENING)
        else:
            assert steps == [0, 0, 0]
            assert path.read_bytes() == whole


def test_records_cannot_be_swapped_left_out_or_repeated(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    sizes = saved(path, 4, 3)
    whole = path.read_bytes()
    head, *parts = (whole[a:b] for a, b in zip([0, *sizes], sizes, strict=False))
    one, two, three, four = parts
    for wrong in ([one, three, two, four], [one, three, four], [two, three, four], [one, one, two, three, four]):
        path.write_bytes(head + b"".join(wrong))
        with pytest.raises(eq.CheckpointMismatch, match="is damaged"):
            resumed(path)
    other = tmp_path / "other"
    saved(other, 4, 4)
    # a record of another run behind the last is no continuation
    path.write_bytes(whole + other.read_bytes()[sizes[0] :])
    with pytest.raises(eq.CheckpointMismatch, match="is damaged"):
        resumed(path)


class Forged:
    """A journal whose records have true digests and untrue contents."""

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.kept = keeper(path)
        self.header = self.kept._header(*run.arguments()[:2])

    def write(self, *records: tuple[int, bytes]) -> None:
        self.path.write_bytes(b"")
        with self.path.open("r+b", buffering=0) as stream:
            book = journal.Journal(stream, checkpoint._OPENING)
            for kind, payload in records:
                book.append(kind, [payload])


def test_contents_that_no_run_writes_are_refused(tmp_path) -> None:
    run = Run()
    forged = Forged(tmp_path / "run.ckpt", run)
    run.advance(6)
    written = run.written
    states = checkpoint._snapshot(run.states, [0] * CHAINS, run.diverged)[8 * CHAINS :]

    def snapshot(*counts: int) -> bytes:
        return struct.pack(f"<{CHAINS}q", *counts) + states

    def save(*counts: int, rows: int = 0) -> tuple[int, bytes]:
        return 2, snapshot(*counts) + bytes(8 * DIM * rows)

    head = (1, forged.header)
    bad = [
        [(2, forged.header)],
        [head, head],
        [head, (3, save(1, 1, 1, rows=3)[1])],
        [head, (2, b"")],
        [head, (2, snapshot(0, 0, 0)[:-1])],
        [head, save(1, 1, 1, rows=2)],
        [head, save(1, 1, 1, rows=4)],
        [head, save(DRAWS + 1, 0, 0, rows=DRAWS + 1)],
        [head, save(2**62, 0, 0)],
        [head, save(-1, 1, 0)],
        [head, save(2, 1, 1, rows=4), save(1, 2, 1)],
    ]
    for records in bad:
        forged.write(*records)
        with pytest.raises(eq.CheckpointMismatch):
            resumed(forged.path)
    forged.write(head, save(*written, rows=sum(written)))
    assert resumed(forged.path)[0].written == written


def test_a_head_that_promises_terabytes_allocates_nothing(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    saved(path, 0)
    with path.open("r+b", buffering=0) as stream:
        book = journal.Journal(stream, checkpoint._OPENING)
        assert [record.kind for record in book.records()] == [1]
        stream.seek(0, os.SEEK_END)
        stream.write(journal._head(book._chain, 2**62, 2))
    run, steps = resumed(path)
    assert steps == [0, 0, 0]
    same(run.finish(), Run().finish())


# A process that starts others, each of which makes runs until it is killed: imports are paid for once.
KILLED = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from tests.damage import killed
    from tests.sampling.kept import Run, keeper, resumed, same

    path, expected, reached = Path(sys.argv[1]), Run().finish(), []

    def write(told):
        path.unlink(missing_ok=True)
        run = Run()
        with keeper(path) as kept:
            kept.restore(*run.arguments())
            for _ in range(36):
                run.advance(1)
                kept.save(*run.arguments())
                told()

    for kill in killed(write, 40, most=35, pause=0.001, seed=3):
        run, steps = resumed(path)
        same(run.finish(), expected)
        reached.append(steps[2])
    print(*reached)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_kill_at_any_moment_leaves_a_file_to_resume_from(tmp_path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run.ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    # kills came at many places of a run
    assert len(set(done.stdout.split())) > 5
