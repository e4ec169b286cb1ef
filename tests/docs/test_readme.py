"""The three examples of the front page run as they stand, on rows, arrays and a module of the kind they speak of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from tests.docs.test_snippets import LINK, ROOT, run

README = ROOT / "README.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(under: str, given: dict[str, object]) -> str:
    """What the block under a heading prints; the names it makes are left in what it was given."""
    ((_, text),) = run(README, under, given)
    return text


def test_clustered_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    from demo import simulate

    simulate(tmp_path / "out", 10_000).rename("out/visits-5000000")
    shown = printed("Clustered counts from files larger than memory", {})
    assert "Rows:             10,000" in shown
    assert "CRV1" in shown
    assert "ok   covariance" in shown
    assert (tmp_path / "visits.html").stat().st_size > 10_000


def test_a_posterior() -> None:
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(500), rng.normal(size=500)])
    y = (rng.random(500) < 1.0 / (1.0 + np.exp(3.5 - X[:, 1]))).astype(float)
    rows = printed("A posterior with its shape", {"eq": eq, "X": X, "y": y}).splitlines()
    assert rows[0].split() == ["estimate", "lower", "upper", "lower_error", "upper_error"]
    found = np.array([[float(word) for word in row.split()[1:]] for row in rows[1:]])
    # the posterior on a grid, far beyond what it has of mass
    grid = found[:, :1] + np.linspace(-2.0, 2.0, 101)
    eta = grid[0][:, None, None] + grid[1][:, None] * X[:, 1]
    log = np.sum(y * eta - np.logaddexp(0.0, eta), axis=2) - 0.05 * np.add.outer(grid[0] ** 2, grid[1] ** 2)
    mass = np.exp(log - log.max())
    for values, points, of in zip(found, grid, (mass.sum(axis=1), mass.sum(axis=0)), strict=True):
        ends = np.interp([0.025, 0.975], (np.cumsum(of) - of / 2) / of.sum(), points)
        assert np.all(np.abs(values[1:3] - ends) < 4.0 * values[3:])
    # a control: the normal approximation at the estimate has another upper end
    p = 1.0 / (1.0 + np.exp(-X @ found[:, 0]))
    spread = np.sqrt(np.linalg.inv((X.T * (p * (1.0 - p))) @ X + 0.1 * np.eye(2))[0, 0])
    assert abs(found[0, 0] + 1.96 * spread - found[0, 2]) > 4.0 * found[0, 4]


@pytest.mark.torch
def test_a_torch_loop() -> None:
    torch = pytest.importorskip("torch", reason="run by make test-torch")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, net, each = torch.randn(300, 2), torch.nn.Linear(2, 1), torch.nn.MSELoss(reduction="none")
    dataset = torch.utils.data.TensorDataset(x, x @ torch.tensor([[1.0], [-1.0]]) + torch.randn(300, 1))
    given: dict[str, Any] = {"eq": eq, "net": net, "dataset": dataset, "loss": lambda out, y: each(out, y)[:, 0]}
    assert printed("A torch loop, calibrated", given) == ""
    lines: list[str] = []
    health, optimizer = given["health"], given["optimizer"]
    health.show = lines.append
    while health.steps < 1000:
        for batch, target in given["loader"]:
            optimizer.zero_grad()
            each(net(batch), target).mean().backward()
            optimizer.step()
    assert len(lines) == 1
    assert health.diagnosis().check("covariance").status == "ok"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "llms.txt"])
def test_links_resolve(page: str) -> None:
    for link in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / link["page"]).exists(), f"{page} links to {link['page']}, which does not exist"
