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
    assert (tmp_path / "out" / "visits.html").stat().st_size > 10_000


def test_a_posterior() -> None:
    given: dict[str, Any] = {"eq": eq}
    rows = printed("A posterior with its shape", given).splitlines()
    assert rows[0].split() == ["estimate", "lower", "upper", "lower_error", "upper_error"]
    found = np.array([[float(word) for word in row.split()[1:]] for row in rows[1:]])
    assert given["y"].sum() == 37
    assert round(given["cal"].tuning.rows_per_draw) == 634
    ends, errors, spread = importance(given["X"], given["y"], found[:, 0])
    assert np.all(np.abs(found[:, 1:3] - ends) < 4.0 * np.hypot(found[:, 3:], errors))
    # a control: the normal approximation at the estimate has another interval of the intercept
    normal = found[0, 0] + 1.96 * spread[0] * np.array([-1.0, 1.0])
    assert np.all(np.abs(normal - found[0, 1:3]) > 4.0 * found[0, 3:])


def importance(X: np.ndarray, y: np.ndarray, mode: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantiles (2.5 and 97.5 %) of the posterior with their errors, and the standard deviations at its mode.

    By weighted draws of Student's t with 5 degrees of freedom around the mode, half as wide again as the curvature says.
    """
    rng, count, dim = np.random.default_rng(1), 6000, len(mode)
    p = 1.0 / (1.0 + np.exp(-X @ mode))
    cov = np.linalg.inv((X.T * (p * (1.0 - p))) @ X + 0.1 * np.eye(dim))
    z = 1.5 * rng.normal(size=(count, dim)) / np.sqrt(rng.chisquare(5, (count, 1)) / 5)
    draws = mode + z @ np.linalg.cholesky(cov).T
    log = draws @ (X.T @ y) - 0.05 * np.sum(draws**2, axis=1)
    log -= np.concatenate([np.logaddexp(0.0, part @ X.T).sum(axis=1) for part in np.split(draws, 60)])
    log += 0.5 * (5 + dim) * np.log1p(np.sum((z / 1.5) ** 2, axis=1) / 5)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    effective = 1.0 / np.sum(weight**2)
    assert effective > 1000
    chances, error = np.array([0.025, 0.975]), np.sqrt(0.025 * 0.975 / effective)
    ends, errors = [], []
    for column in draws.T:
        order = np.argsort(column)
        mass = np.cumsum(weight[order]) - weight[order] / 2
        ends.append(np.interp(chances, mass, column[order]))
        errors.append(
            0.5 * (np.interp(chances + error, mass, column[order]) - np.interp(chances - error, mass, column[order]))
        )
    return np.array(ends), np.array(errors), np.sqrt(np.diag(cov))


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
