"""Every source of rows through one suite: blocks, ordered sums, samples, fingerprints."""

from __future__ import annotations

import copy
import os
import pickle
from typing import NamedTuple

import numpy as np
import pytest

from equipoise.data import fields as arrays_module
from tests.known import sources

SOURCES = sources()
every_source = pytest.mark.parametrize("name", list(SOURCES))


class Total(NamedTuple):
    rows: float
    sum: np.ndarray
    square: np.ndarray


def matrix(block) -> np.ndarray:
    """All numbers of a block, a row for a row."""
    held = getattr(block, "leaves", None) or [block.x, block.y, block.weights, block.offset]
    return np.column_stack([np.asarray(part, dtype=float) for part in held if part is not None])


def total(block) -> Total:
    numbers = matrix(block)
    return Total(float(len(numbers)), numbers.sum(axis=0), numbers.T @ numbers)


def whole(source) -> np.ndarray:
    return np.vstack([matrix(block) for block in source.blocks()])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few dozen rows, so that every source has many."""
    monkeypatch.setattr("equipoise.linalg._BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(arrays_module, "_COLUMN_ELEMENTS", 30)


@every_source
def test_blocks_cover_the_rows_once_and_in_order(name) -> None:
    source = SOURCES[name]
    blocks = list(source.blocks())
    assert len(blocks) > 10
    assert sum(block.n for block in blocks) == source.n == len(whole(source))
    np.testing.assert_array_equal(whole(source), whole(source))
    # a pass that makes more of a row gets fewer of them at once
    assert max(b.n for b in source.blocks(width=50)) < max(b.n for b in blocks) or blocks[0].n == 1


@every_source
def test_reduce_is_the_sum_over_all_rows(name) -> None:
    source = SOURCES[name]
    found, numbers = source.reduce(total), whole(source)
    assert found.rows == source.n
    np.testing.assert_allclose(found.sum, numbers.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.square, numbers.T @ numbers, rtol=1e-12)


@every_source
def test_no_bit_of_a_sum_depends_on_the_number_of_threads(name, monkeypatch) -> None:
    source = SOURCES[name]
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        found.append(source.reduce(total))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].square, other.square)
        np.testing.assert_array_equal(found[0].sum, other.sum)


@every_source
def test_a_sum_in_one_long_row_would_differ(name) -> None:
    """A control: the tree's order is seen in the last bits, so that the test above can fail."""
    source = SOURCES[name]
    parts = [total(block).square for block in source.blocks()]
    chain = parts[0].copy()
    for part in parts[1:]:
        chain += part
    assert not np.array_equal(chain, source.reduce(total).square)


@every_source
def test_samples_are_distinct_rows_in_order(name) -> None:
    source = SOURCES[name]
    rows = {tuple(row): k for k, row in enumerate(whole(source))}
    sample = whole(source.sample(100, seed=4))
    places = [rows[tuple(row)] for row in sample]
    assert len(places) == 100
    assert places == sorted(set(places))
    np.testing.assert_array_equal(sample, whole(source.sample(100, seed=4)))
    assert not np.array_equal(sample, whole(source.sample(100, seed=5)))
    np.testing.assert_array_equal(whole(source.sample(source.n, seed=1)), whole(source))


@every_source
@pytest.mark.parametrize("count", [0, -1, 10**9, 2.5, "all", None, True])
def test_samples_of_impossible_size(name, count) -> None:
    from equipoise import InvalidInput

    with pytest.raises(InvalidInput, match="count: must be"):
        SOURCES[name].sample(count, seed=0)


@every_source
def test_the_fingerprint_changes_with_any_row_and_with_nothing_else(name) -> None:
    source = SOURCES[name]
    key = source.fingerprint()
    assert (
        key
        == source.fingerprint()
        == copy.deepcopy(source).fingerprint()
        == pickle.loads(pickle.dumps(source)).fingerprint()
    )
    assert source.take(slice(0, source.n - 1)).fingerprint() != key
    swapped = np.arange(source.n)
    swapped[[3, 600]] = swapped[[600, 3]]
    assert source.take(swapped).fingerprint() != key


@every_source
def test_names_and_response(name) -> None:
    source = SOURCES[name]
    assert len(set(source.names)) == len(source.names) > 0
    assert source.response == "y"
    assert (source.design is None) == (name in {"arrays", "weights and offset", "columns", "files of columns"})


@every_source
def test_a_pool_draws_every_row_as_often_and_in_any_order(name) -> None:
    source = SOURCES[name]
    rows = {tuple(row): k for k, row in enumerate(whole(source))}
    draws = 40 * source.n
    places = np.array([rows[tuple(row)] for row in matrix(source.pool(draws, seed=3))])
    expected = draws / source.n
    square = float(((np.bincount(places, minlength=source.n) - expected) ** 2 / expected).sum())
    # of χ² with n − 1 degrees of freedom; five standard deviations
    assert abs(square - (source.n - 1)) < 5.0 * np.sqrt(2.0 * source.n)
    # each draw is independent of the one before: neighbours are uncorrelated
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < 5.0 / np.sqrt(draws)
    np.testing.assert_array_equal(matrix(source.pool(50, seed=3)), matrix(source.pool(50, seed=3)))
    assert not np.array_equal(matrix(source.pool(50, seed=3)), matrix(source.pool(50, seed=4)))


def first_number(block) -> np.ndarray:
    """A weight for every row: none for some, and far from even."""
    return np.maximum(matrix(block)[:, 1] + 0.5, 0.0)


@every_source
def test_a_pool_by_weight_draws_rows_in_proportion(name) -> None:
    source = SOURCES[name]
    numbers = whole(source)
    rows = {tuple(row): k for k, row in enumerate(numbers)}
    draws = 100_000
    places = np.array([rows[tuple(row)] for row in matrix(source.pool(draws, 5, first_number))])
    weight = np.maximum(numbers[:, 1] + 0.5, 0.0)
    expected = draws * weight / weight.sum()
    counts = np.bincount(places, minlength=source.n)
    assert not counts[weight == 0.0].any()
    likely = expected > 5.0
    square = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    assert abs(square - likely.sum()) < 5.0 * np.sqrt(2.0 * likely.sum())


@every_source
def test_without_a_seed_some_rows_are_taken(name) -> None:
    source = SOURCES[name]
    rows = {tuple(row): k for k, row in enumerate(whole(source))}
    places = [rows[tuple(row)] for row in whole(source.sample(100, seed=None))]
    assert places == sorted(set(places))
    assert len(places) == 100
    # of 700 rows, not the first hundred
    assert np.mean(places) > 250.0


@every_source
def test_rows_by_their_numbers_in_any_order(name) -> None:
    source = SOURCES[name]
    numbers, index = whole(source), np.array([600, 3, 3, 0, source.n - 1, 151])
    np.testing.assert_array_equal(matrix(source.take(index)), numbers[index])
    np.testing.assert_array_equal(matrix(source.take(slice(140, 320))), numbers[140:320])


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.in_memory])
def test_marks_go_with_their_rows(name) -> None:
    source = SOURCES[name]
    rng = np.random.default_rng(2)
    firm, time = rng.integers(0, 9, source.n), rng.permutation(source.n).astype(float)
    made = source.marked({"firm": firm, "pair": firm // 2}, time)
    assert source.marks is None
    assert made.fingerprint() == source.fingerprint()
    blocks = list(made.blocks())
    assert len(blocks) > 10
    np.testing.assert_array_equal(np.concatenate([b.marks.labels[:, 0] for b in blocks]), firm)
    np.testing.assert_array_equal(np.concatenate([b.marks.time for b in blocks]), time)
    # by name from those that are kept, in the order asked for
    chosen = made.marked(["pair", "firm"])
    assert chosen.marks.names == ("pair", "firm")
    np.testing.assert_array_equal(chosen.marks.labels[:, 1], firm)
    sample = made.sample(50, seed=1)
    rows = {tuple(row): k for k, row in enumerate(whole(source))}
    places = [rows[tuple(row)] for row in whole(sample)]
    np.testing.assert_array_equal(sample.marks.labels[:, 0], firm[places])
    ordered = made.by_time()
    np.testing.assert_array_equal(ordered.marks.time, np.arange(source.n))
    np.testing.assert_array_equal(whole(ordered), whole(source)[np.argsort(time)])
