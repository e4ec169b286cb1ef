"""The engines' generator, against an independent implementation and against the laws it claims."""

import math

import numpy as np
import pytest
from scipy import stats

from equipoise.engines.random import (
    _EDGE,
    _TAIL,
    add_normals,
    bounded,
    compiled,
    distinct_rows,
    next_word,
    rows_with_replacement,
)

MASK = 2**64 - 1


def fresh(seed):
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


def rotl(x, k):
    return ((x << k) | (x >> (64 - k))) & MASK


def reference_words(state, count):
    """xoshiro256++ in Python integers, after the authors' C code."""
    s = [int(word) for word in state]
    words = []
    for _ in range(count):
        words.append((rotl((s[0] + s[3]) & MASK, 23) + s[0]) & MASK)
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
    return words, s


@compiled
def many_bounded(state, size, values):
    for k in range(values.size):
        values[k] = bounded(state, size)


@compiled
def many_batches(state, order, swaps, batch, values):
    for k in range(values.shape[0]):
        distinct_rows(state, order, swaps, batch)
        values[k] = batch


def normals(seed, count):
    values = np.zeros(count)
    add_normals(fresh(seed), np.ones(count), values, count)
    return values


def test_words_follow_the_published_recurrence():
    state = fresh(3)
    expected, after = reference_words(state, 200)
    assert [int(next_word(state)) for _ in range(200)] == expected
    assert [int(word) for word in state] == after


def test_first_word_of_the_published_example_state():
    # (s0 + s3) rotated by 23, plus s0, for the state 1, 2, 3, 4: 5·2²³ + 1.
    assert int(next_word(np.array([1, 2, 3, 4], dtype=np.uint64))) == 5 * 2**23 + 1


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 3_000_000_001])
def test_bounded_integers_are_the_high_half_of_a_product_with_rejection(size):
    state = fresh(size)
    words, _ = reference_words(state, 60)
    expected = [(w >> 32) * size >> 32 for w in words if (w >> 32) * size % 2**32 >= 2**32 % size]
    values = np.zeros(25, dtype=np.uint64)
    many_bounded(state, np.uint64(size), values)
    assert values.tolist() == expected[:25]


@pytest.mark.parametrize("size", [3, 10, 97])
def test_bounded_integers_are_uniform(size):
    values = np.zeros(200_000, dtype=np.uint64)
    rows_with_replacement(fresh(size), np.uint64(size), values)
    counts = np.bincount(values.astype(np.int64), minlength=size)
    assert len(counts) == size
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", [10, 3_000_000_001])
def test_a_batch_is_a_sequence_of_bounded_integers(size):
    # Sizes near 2³² reject a third of the words, so the rare path is taken too.
    batch, one_by_one = np.zeros(500, dtype=np.uint64), np.zeros(500, dtype=np.uint64)
    first, second = fresh(1), fresh(1)
    rows_with_replacement(first, np.uint64(size), batch)
    many_bounded(second, np.uint64(size), one_by_one)
    np.testing.assert_array_equal(batch, one_by_one)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("size", [1, 4, 11, 12])
def test_distinct_rows_are_distinct_uniform_and_leave_no_trace(size):
    count, draws = 12, 30_000
    order = np.arange(count, dtype=np.uint32)
    values = np.zeros((draws, size), dtype=np.uint64)
    many_batches(fresh(size), order, np.zeros(size, np.uint64), np.zeros(size, np.uint64), values)
    np.testing.assert_array_equal(order, np.arange(count))
    ordered = np.sort(values.astype(np.int64), axis=1)
    assert np.all(np.diff(ordered, axis=1) > 0)
    assert ordered.max() < count
    # Every position of a batch is uniform; so are ordered pairs of positions.
    for k in {0, size // 2, size - 1}:
        assert stats.chisquare(np.bincount(values[:, k].astype(np.int64), minlength=count)).pvalue > 1e-3
    if size > 1:
        pairs = np.bincount((values[:, 0] * count + values[:, size - 1]).astype(np.int64), minlength=count**2)
        off_diagonal = pairs.reshape(count, count)[~np.eye(count, dtype=bool)]
        assert stats.chisquare(off_diagonal).pvalue > 1e-3


def test_normals_have_the_moments_and_the_law():
    x = normals(5, 400_000)
    for power, moment in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)]:
        # Var x^p = E x^2p − (E x^p)², with E x^2k = (2k − 1)!!
        spread = np.prod(np.arange(2 * power - 1, 0, -2, dtype=float)) - moment**2
        assert abs(np.mean(x**power) - moment) < 4.0 * np.sqrt(spread / x.size)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    # The Kolmogorov–Smirnov test is blind to a fault confined to a strip: compare counts in narrow bins too.
    edges = stats.norm.ppf(np.linspace(0.0, 1.0, 401))
    assert stats.chisquare(np.histogram(x, edges)[0]).pvalue > 1e-3


def reference_normal(words):
    """The ziggurat, from its definition: a uniform point of a uniform strip, kept if it lies under the curve."""

    def unit():
        return ((next(words) >> 11) + 1) / 2**53

    while True:
        word = next(words)
        high, layer = word >> 11, word & 255
        x = (high - 2**53 if high >= 2**52 else high) / 2**52 * _EDGE[layer]
        if abs(x) < _EDGE[layer + 1]:
            return x
        if layer == 0:
            while True:
                excess = -math.log(unit()) / _TAIL
                if math.exp(-(excess**2) / 2.0) >= unit():
                    return math.copysign(_TAIL + excess, x)
        low, high = np.exp(-0.5 * _EDGE[layer : layer + 2] ** 2)
        if low + (high - low) * unit() < math.exp(-0.5 * x * x):
            return x


def test_normals_are_those_of_the_ziggurat_word_by_word():
    # Long enough for about 400 points outside the inner strips and some from the tail.
    words = iter(reference_words(fresh(4), 31_000)[0])
    expected = [reference_normal(words) for _ in range(30_000)]
    assert np.abs(expected).max() > _TAIL
    np.testing.assert_allclose(normals(4, 30_000), expected, rtol=1e-14)


def test_a_biased_normal_would_be_detected():
    assert stats.kstest(normals(5, 400_000) * 1.01, "norm").pvalue < 1e-3


def test_normals_beyond_the_last_strip_have_the_right_rate_and_law():
    x = normals(6, 4_000_000)
    for side in (x, -x):
        tail = side[side > _TAIL]
        expected = x.size * stats.norm.sf(_TAIL)
        assert abs(tail.size - expected) < 4.0 * np.sqrt(expected)
        survival = stats.norm.sf(tail) / stats.norm.sf(_TAIL)
        assert stats.kstest(survival, "uniform").pvalue > 1e-3
    assert np.abs(x).max() > 4.5


def test_strips_have_equal_areas_and_meet_at_the_mode():
    heights = np.exp(-0.5 * _EDGE**2)
    area = np.sqrt(2.0 * np.pi) * stats.norm.sf(_TAIL) + _TAIL * heights[1]
    assert _EDGE.shape == (257,)
    np.testing.assert_allclose(_EDGE[1:-1] * np.diff(heights[1:]), area, rtol=1e-9)
    np.testing.assert_allclose(_EDGE[0] * heights[1], area, rtol=1e-12)


def test_noise_is_added_to_the_first_values_and_scaled():
    values = np.ones(10)
    add_normals(fresh(9), np.full(7, 0.5), values, 7)
    np.testing.assert_allclose(values[:7], 1.0 + 0.5 * normals(9, 7), rtol=1e-15)
    np.testing.assert_array_equal(values[7:], 1.0)


def test_normals_do_not_depend_on_how_they_are_split():
    state, values = fresh(2), np.zeros(1000)
    for start, stop in [(0, 1), (1, 400), (400, 1000)]:
        add_normals(state, np.ones(stop - start), values[start:stop], stop - start)
    np.testing.assert_array_equal(values, normals(2, 1000))
