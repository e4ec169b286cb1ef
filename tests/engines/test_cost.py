"""The choice between variants of a step."""

from equipoise.engines.cost import SPLIT, pays_to_project, rows_ahead, threads_per_chain
from equipoise.engines.numba.table import RowTable


def test_narrow_rows_of_large_tables_are_asked_for_ahead():
    def ahead(count, dim):
        return rows_ahead(count, RowTable.blank(2, dim).cells.strides[0])

    assert ahead(100_000, 4) == 16
    assert 8 <= ahead(100_000, 20) <= 16
    assert ahead(5000, 50) == 8
    assert ahead(100_000, 100) == 0
    assert ahead(1000, 4) == 0


def test_large_batches_of_few_chains_are_shared():
    assert [threads_per_chain(SPLIT, 8, chains) for chains in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    assert threads_per_chain(SPLIT - 1, 8, 1) == 1


def test_a_projection_pays_unless_its_rows_outgrow_the_data():
    assert pays_to_project(1, 50, 51)
    assert pays_to_project(2, 50, 51)
    assert not pays_to_project(3, 50, 51)
    assert not pays_to_project(1, 1000, 3)
