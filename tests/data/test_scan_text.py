"""Text files: types that their rows tell, and what is wrong in them by file and row."""

from __future__ import annotations

import gzip
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data.parts import CSVPart
from tests.data.conftest import assert_same


def test_text_without_types(tmp_path) -> None:
    text = "y,a,b,s,d,t\n" + "".join(f"{k},{k},{k / 8},x{k % 3},2024-01-0{1 + k % 5},{k % 2 == 0}\n" for k in range(40))
    (tmp_path / "1.csv").write_text(text)
    formula = "y ~ a + b + s + d + t"
    assert_same(eq.data.scan(tmp_path, formula).whole(), eq.data.table(tmp_path / "1.csv", formula))


def test_text_whose_first_rows_mislead(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200)
    rows = [f"{k % 7},{k},{k},{'true' if k % 2 else 'false'}" for k in range(200)]
    rows[150], rows[160], rows[170] = "2.5,150,150,true", "3,1e3,160,false", "4,170,some words,maybe"
    (tmp_path / "1.csv").write_text("y,a,s,t\n" + "\n".join(rows) + "\n")
    source = eq.data.scan(tmp_path / "1.csv", "y ~ a + t")
    assert_same(source.whole(), eq.data.table(tmp_path / "1.csv", "y ~ a + t"))
    assert source.passes > 3.0
    with pytest.raises(InvalidInput, match=r"s: must be numbers in every row.*'some words' at row 170"):
        eq.data.scan(tmp_path / "1.csv", columns={"s": "s"})


@pytest.mark.parametrize("row", [3, 150])
def test_a_word_among_the_numbers_of_a_text_file_is_named(row, tmp_path, monkeypatch) -> None:
    """Whether among the rows whose types are guessed or after them, and however the file is read."""
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200)
    rows = [f"{k % 7},{k / 8}" for k in range(200)]
    rows[row] = "1,oops"
    (tmp_path / "1.csv").write_text("y,a\n" + "\n".join(rows) + "\n")
    words = rf"a: must be numbers in every row .*'0.0' at row 0 and 'oops' at row {row}, in .*1.csv.*write C\(a\)"
    with pytest.raises(InvalidInput, match=words):
        eq.data.scan(tmp_path, "y ~ a")
    with pytest.raises(InvalidInput, match=words):
        eq.data.table(tmp_path / "1.csv", "y ~ a")
    with pytest.raises(InvalidInput, match="a: must be numbers in every row"):
        eq.data.scan(tmp_path, "a ~ y")
    # of levels that are asked for, and of clusters, some may be numbers
    assert "C(a)[T.oops]" in eq.data.scan(tmp_path, "y ~ C(a)").names
    assert eq.data.scan(tmp_path, "y ~ 1", clusters="a").n == 200


def test_numbers_and_words_in_different_blocks_and_files_of_text(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.CHUNK", 3)
    (tmp_path / "1.csv").write_text("y,g\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(40)))
    (tmp_path / "2.csv").write_text("y,g\n" + "".join(f"{k},{'7' if k == 35 else 'c'}\n" for k in range(40)))
    with pytest.raises(InvalidInput, match=r"g: .*'7' at row 35 of .*2.csv and 'c' at row 0 of .*2.csv"):
        eq.data.scan(tmp_path, "y ~ g")
    (tmp_path / "2.csv").write_text("y,g\n1,2\n2,3\n")
    with pytest.raises(InvalidInput, match=r"g, which is string in .*1.csv and int64 in .*2.csv \('a' at row 0\)"):
        eq.data.scan(tmp_path, "y ~ g")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y;a\n1,5;1\n2,5;2\n", "y: .*decimal point.*'1,5' at row 0"),
        ('y,a\n1,"-1,000.5"\n2,"2,000"\n', "a: .*decimal point"),
    ],
)
def test_numbers_with_commas_are_no_levels(text, words, tmp_path) -> None:
    (tmp_path / "1.csv").write_text(text)
    for read in (eq.data.scan, eq.data.table):
        with pytest.raises(InvalidInput, match=words):
            read(tmp_path / "1.csv", "y ~ a")


def test_text_that_is_not_utf8_and_short_rows_are_named_by_row(tmp_path) -> None:
    (tmp_path / "1.csv").write_bytes("y,g\n1,b\n2,\xe4\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"1.csv: .*Row #3: .*invalid UTF8"):
        eq.data.scan(tmp_path / "1.csv", "y ~ g")
    (tmp_path / "1.csv").write_text("y,g\n1,2\n2,3\n4\n")
    with pytest.raises(InvalidInput, match=r"1.csv: .*Row #4: Expected 2 columns"):
        eq.data.scan(tmp_path / "1.csv", "y ~ g")


def test_short_rows_far_into_a_text_file_are_named_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200)
    (tmp_path / "1.csv").write_text("y,g\n" + "1,2\n" * 100 + "4\n")
    with pytest.raises(InvalidInput, match=r"1.csv: .*Row #102: Expected 2 columns"):
        eq.data.scan(tmp_path / "1.csv", "y ~ g")


@pytest.mark.parametrize(("file", "header"), [("1.csv", "y,a"), ("1.tsv", "y\ta")])
def test_broken_text(file, header, tmp_path) -> None:
    (tmp_path / file).write_text(f"{header}\n1{header[1]}2\n1{header[1]}2{header[1]}3\n")
    with pytest.raises(InvalidInput, match=f"made of readable files; got .*{file}"):
        eq.data.scan(tmp_path / file, "y ~ a")


@pytest.mark.parametrize(("right", "most"), [("x + z", 1), ("x + I(z ** 2)", 3)])
def test_fractions_that_come_late_in_every_text_file_take_few_readings(right, most, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.parts._TEXT", 1 << 12)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=6000), "z": np.r_[rng.integers(0, 9, 5999), 2.5]})
    frame["y"] = rng.poisson(1.0, 6000)
    for k in range(6):
        with (tmp_path / f"{k}.csv").open("w") as file:
            file.write("x,z,y\n")
            file.writelines(f"{x!r},{z:g},{y:.0f}\n" for x, z, y in frame.to_numpy().tolist())
    opened, reader = Counter(), CSVPart.reader

    def counted(self, columns, types, *others, **named):
        opened[self.label] += columns is not None
        return reader(self, columns, types, *others, **named)

    monkeypatch.setattr(CSVPart, "reader", counted)
    source = eq.data.scan(tmp_path, f"y ~ {right}")
    assert max(opened.values()) <= most
    expected = eq.data.table(pd.concat([frame] * 6), f"y ~ {right}")
    np.testing.assert_allclose(source.whole().x, expected.x, rtol=1e-12)


def test_words_that_come_late_in_every_text_file(tmp_path, monkeypatch) -> None:
    """As where files are sorted by codes, of which some begin with a letter, or where a file has hardly any value."""
    monkeypatch.setattr("equipoise.data.parts._TEXT", 1 << 12)
    rng, frames = np.random.default_rng(0), []
    for k in range(4):
        codes = np.sort(rng.integers(0, 40, 2000)).astype(str).astype(object)
        codes[-20:] = [f"A{j}" for j in rng.integers(0, 5, 20)]
        frame = pd.DataFrame({"y": rng.poisson(1.0, 2000), "x": rng.normal(size=2000), "firm": codes, "g": codes})
        frame = frame.assign(firm=[None] * 1999 + ["A1"]) if k == 3 else frame
        frame.to_csv(tmp_path / f"{k}.csv", index=False)
        frames.append(frame)
    with pytest.warns(eq.EquipoiseWarning, match="1999 of 8000 rows"):
        source = eq.data.scan(tmp_path, "y ~ x + C(g)", clusters="firm", missing="drop")
    assert source.passes == 3  # until it is met, to look at all values, and to learn
    frame = pd.concat(frames, ignore_index=True).dropna()
    assert_same(source.marked().whole(), eq.data.table(frame, "y ~ x + C(g)", clusters="firm"))


@pytest.mark.parametrize("formula", ["y ~ x", "y ~ x + s"])
@pytest.mark.parametrize(("rows", "row", "ending"), [(300, 150, ".csv"), (300, 299, ".csv"), (300, 150, ".csv.gz")])
def test_a_quote_that_is_not_closed_loses_no_rows(rows, row, ending, formula, tmp_path, monkeypatch) -> None:
    """All rows behind it would be one value, perhaps of a column that is not read."""
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200 if ending == ".csv" else 1 << 20)
    lines = [f"{k % 5},{k % 7 / 8},ab" for k in range(rows)]
    text = "y,x,s\n" + "\n".join(lines) + "\n"
    path = tmp_path / f"1{ending}"
    opened = gzip.open if ending.endswith("gz") else open
    with opened(path, "wt") as file:
        file.write(text)
    assert eq.data.scan(path, "y ~ x").n == rows
    lines[row] = lines[row].replace("ab", '"ab')
    with opened(path, "wt") as file:
        file.write("y,x,s\n" + "\n".join(lines) + "\n")
    with pytest.raises(InvalidInput, match=rf"1\.csv.*quote in line {row + 2} is not closed"):
        eq.data.scan(path, formula)


def test_a_quote_inside_of_a_value_is_a_letter(tmp_path) -> None:
    (tmp_path / "1.csv").write_text('y,x,s\n1,2,5" pipe\n0,1,a\n2,3,"b ""c"" d"\n0,2,c\n')
    source = eq.data.scan(tmp_path / "1.csv", "y ~ x")
    assert_same(source.whole(), eq.data.table(tmp_path / "1.csv", "y ~ x"))


def test_files_that_disagree_where_one_is_no_text(tmp_path) -> None:
    """What the first rows of a file say of it need not hold where the other's first word is looked for."""
    (tmp_path / "1.csv").write_text("y,x\n" + "1,2.5\n" * 20)
    (tmp_path / "2.csv").write_bytes(b"y,x\n" + b"1,2.5\n" * 20 + b"1,\xff\xfe\n")
    with pytest.raises(InvalidInput, match=r"2\.csv.*invalid UTF8"):
        eq.data.scan(tmp_path, "y ~ x")


@pytest.mark.parametrize(("encoding", "words"), [("latin-1", "can't decode byte 0xf6"), ("utf-16", "UTF-16")])
def test_other_encodings_are_named(encoding, words, tmp_path) -> None:
    (tmp_path / "1.csv").write_bytes("y,a,größe\n1,2,3\n2,4,4\n".encode(encoding))
    with pytest.raises(InvalidInput, match=rf"1.csv: .*{words}.*To fix: save that file as UTF-8"):
        eq.data.scan(tmp_path, "y ~ a")


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\r\n", b"y,a", b'"y";"a"\r\n'])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_text_files_without_rows(content, ending, tmp_path) -> None:
    (tmp_path / "1.csv").write_text("y,a\n1,2\n2,4\n3,3\n")
    (tmp_path / f"0{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert eq.data.scan(tmp_path, "y ~ a").n == 3
    (tmp_path / "1.csv").unlink()
    with pytest.raises(InvalidInput, match=r"at least one row|made of columns of the files"):
        eq.data.scan(tmp_path, "y ~ a + b")


def test_a_file_without_rows_has_no_types(tmp_path) -> None:
    some = pd.DataFrame({"y": [1.0, 2.0, 3.0], "a": [2.0, 4.0, 3.0]})
    some.to_parquet(tmp_path / "1.parquet")
    some[:0].astype(str).to_parquet(tmp_path / "0.parquet")
    some[:0].astype({"a": "datetime64[ns]"}).to_feather(tmp_path / "2.feather")
    assert eq.data.scan(tmp_path, "y ~ a").n == 3
    some[:0][["y"]].to_parquet(tmp_path / "0.parquet")
    with pytest.raises(InvalidInput, match=r"\['a'\], which .*0.parquet does not have"):
        eq.data.scan(tmp_path, "y ~ a")


def test_a_stream_of_what_arrow_does_not_know_is_named() -> None:
    class Strange:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise pa.ArrowInvalid("unsupported format string: '_pli128'")

    with pytest.raises(InvalidInput, match="the stream: unsupported format string"):
        eq.data.scan(Strange(), "y ~ a")
