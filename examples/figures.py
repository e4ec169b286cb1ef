"""The three figures of the front page: clusters, a posterior's shape beside NUTS, a torch loop.

Run it with `python examples/figures.py [clusters] [shape] [torch] [--to docs/figures]`: two minutes for all of them. Each
prints the numbers that it draws. The second needs NumPyro and ArviZ, the third torch (`pip install '.[torch]'`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import equipoise as eq
from equipoise.report.palette import BLACK, BLUE, GREY, VERMILION

mpl.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))
from demo import CLINICS, FORMULA, simulate  # the rows of `make demo`

STYLE = {
    "font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11.5,
    "axes.titlelocation": "left", "legend.frameon": False, "svg.hashsalt": "equipoise",
}  # fmt: skip


def clusters() -> plt.Figure:
    """Intervals of what varies between clinics only, of the model and by clinic, beside the truth of the simulation."""
    rows = 5_000_000
    files = f"{simulate(Path('out'), rows)}/*.parquet"
    cal = eq.calibrate(
        eq.glm("poisson"), eq.data.scan(files, FORMULA, clusters="clinic"), target="CRV1", progress=False
    )
    truth = {"reminder": 0.0, "C(region)[T.north]": 0.1, "C(region)[T.south]": 0.2, "C(region)[T.west]": 0.3}
    words = {"reminder": "reminder\n(does nothing)", **{name: name[12:-1] for name in truth if "[" in name}}
    own = np.sqrt(np.diag(eq.posterior(cal.plan.moments)))
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    for place, name in enumerate(reversed(truth)):
        k = cal.names.index(name)
        estimate = cal.fit.params[k]
        for shift, error, colour in ((0.16, own[k], VERMILION), (-0.16, cal.bse.iloc[k], BLUE)):
            axes.errorbar(estimate, place + shift, xerr=1.96 * error, fmt="o", ms=4, capsize=3, lw=2, color=colour)
        axes.plot([truth[name]] * 2, [place - 0.38, place + 0.38], color=BLACK, lw=1.2, ls=(0, (2, 2)))
        print(f"{name:20s} {estimate:+.4f}, se of the model {own[k]:.5f}, by clinic {cal.bse.iloc[k]:.5f}")
    axes.set_yticks(range(len(truth)), [words[name] for name in reversed(truth)])
    axes.set_xlabel("effect on the log of the rate, with 95 % intervals")
    marks = [
        plt.Line2D([], [], color=VERMILION, marker="o", ms=4, lw=2, label="the model's own"),
        plt.Line2D([], [], color=BLUE, marker="o", ms=4, lw=2, label="clustered by clinic"),
        plt.Line2D([], [], color=BLACK, lw=1.2, ls=(0, (2, 2)), label="truth"),
    ]
    axes.legend(handles=marks, loc="upper right")
    axes.set_title(f"{rows // 10**6} million rows, {CLINICS:,} clinics: one model, two kinds of error")
    return figure


def rare() -> tuple[np.ndarray, np.ndarray]:
    """Twenty thousand rows with a few dozen events."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(20_000), rng.normal(size=20_000), rng.integers(0, 2, 20_000)])
    return x, (rng.random(20_000) < 1.0 / (1.0 + np.exp(-x @ [-7.0, 0.8, 0.7]))).astype(float)


def nuts(x: np.ndarray, y: np.ndarray, precision: float, draws: int) -> tuple[np.ndarray, float]:
    """Draws of NumPyro's NUTS, and the rows it reads for an effective one after warming up."""
    import arviz
    import jax
    import numpyro
    from numpyro import distributions as dist

    numpyro.enable_x64()

    def program(x: Any, y: Any) -> None:
        slope = numpyro.sample("b", dist.Normal(0.0, precision**-0.5).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)

    kernel = numpyro.infer.NUTS(program)
    run = numpyro.infer.MCMC(kernel, num_warmup=500, num_samples=draws, num_chains=1, progress_bar=False)
    run.run(jax.random.key(0), x, y, extra_fields=("num_steps",))
    found = np.asarray(run.get_samples()["b"])
    least = min(float(arviz.ess(found[None, :, j])) for j in range(found.shape[1]))
    return found, float(run.get_extra_fields()["num_steps"].sum()) * len(y) / least


def shape() -> plt.Figure:
    """The marginal of an intercept: the chain's draws, NUTS, and the normal approximation; and the rows each reads."""
    x, y = rare()
    cal = eq.calibrate(
        eq.glm("bernoulli", prior_precision=0.1), (x, y), "posterior", 20_000, fidelity=0.95, progress=False
    )
    theirs, cost = nuts(x, y, 0.1, 10_000)
    ours, draws = cal.tuning.rows_per_draw, cal.chains.flat()[:, 0]
    centre, sd = cal.fit.params[0], float(np.sqrt(cal.tuning.target[0, 0]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.0), width_ratios=[1.7, 1])
    bins = np.linspace(centre - 4.5 * sd, centre + 3.5 * sd, 61)
    left.hist(draws, bins=bins, density=True, color=BLUE, alpha=0.45, label="Equipoise, fidelity 0.95")
    left.stairs(np.histogram(theirs[:, 0], bins, density=True)[0], bins, color=BLACK, lw=1.3, label="NUTS")
    line = np.linspace(bins[0], bins[-1], 300)
    normal = np.exp(-0.5 * ((line - centre) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
    left.plot(line, normal, color=VERMILION, lw=1.6, ls="--", label="normal approximation")
    left.set(yticks=[], xlabel="log-odds of an event", title=f"{y.sum():.0f} events in {len(y):,} rows")
    left.spines["left"].set_visible(False)
    left.legend(loc="upper left", fontsize=9)
    right.barh(["NUTS", "Equipoise"], [cost, ours], color=[GREY, BLUE], height=0.5)
    right.set(xscale="log", xlim=(10.0, 1e7), title="rows read per effective draw")
    for place, value in enumerate((cost, ours)):
        right.text(value * 1.3, place, f"{value:,.0f}", va="center", fontsize=10)
    means = [f"{name}: mean {a.mean():.3f}, sd {a.std():.3f}, 2.5 % {np.quantile(a, 0.025):.3f}"
             for name, a in (("Equipoise", draws), ("NUTS", theirs[:, 0]))]  # fmt: skip
    print(*means, f"normal: mean {centre:.3f}, sd {sd:.3f}, 2.5 % {centre - 1.96 * sd:.3f}", sep="\n")
    print(f"rows per effective draw: {ours:,.0f} against {cost:,.0f} of NUTS (warm-up left out)")
    return figure


def loop(guess: float | None, steps: int = 20_000) -> tuple[np.ndarray, Any]:
    """Weights along a torch loop: torch's own SGD with a guessed learning rate, or the calibrated one; and the target."""
    import torch

    from equipoise.interop import torch as eqt

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(2000, 2)) @ np.array([[2.0, 0.3], [0.0, 0.5]]), dtype=torch.float32)
    y = torch.tensor((rng.random(2000) < 1.0 / (1.0 + np.exp(-X.numpy() @ [0.7, -1.0]))).astype(np.float32))
    net, bce = torch.nn.Linear(2, 1, bias=False), torch.nn.BCEWithLogitsLoss(reduction="none")
    model = eqt.Model(net, lambda out, target: bce(out[:, 0], target))
    fit = eq.fit(model, (X, y))
    moments = eq.moments(model, (X, y), fit)
    dataset = torch.utils.data.TensorDataset(X, y)
    model.load(fit.theta)
    if guess is None:
        loader = eqt.loader(dataset, 50, seed=0)
        optimizer: Any = eqt.SGD(net.parameters(), eq.tune(moments, "sandwich", eq.Dynamics(50)), loader=loader)
    else:
        loader = torch.utils.data.DataLoader(dataset, batch_size=50, shuffle=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=guess)
    draws = []
    while len(draws) < steps:
        for batch, target in loader:
            optimizer.zero_grad()
            bce(net(batch)[:, 0], target).mean().backward()
            optimizer.step()
            draws.append(net.weight.detach().numpy()[0].copy())
    return np.array(draws[500:]), (fit.theta, eq.sandwich(moments))


def torch() -> plt.Figure:
    """Weights along two loops, with the ellipse that is to hold 95 % of them."""
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.4), sharex=True, sharey=True)
    titles = {"torch.optim.SGD(lr=0.1), shuffle=True": 0.1, "eqt.SGD(tuning), eqt.loader": None}
    for axes, (title, guess) in zip(panels, titles.items(), strict=True):
        draws, (centre, cov) = loop(guess)
        angle = np.linspace(0.0, 2.0 * np.pi, 200)
        ring = centre + np.sqrt(5.991) * np.column_stack([np.cos(angle), np.sin(angle)]) @ np.linalg.cholesky(cov).T
        axes.plot(*draws[::10].T, ".", ms=2.5, alpha=0.45, color=VERMILION if guess else BLUE)
        axes.plot(*ring.T, color=BLACK, lw=1.3)
        first, second = draws.std(axis=0) / np.sqrt(np.diag(cov))
        axes.set(title=f"{title}\nsd {first:.2f} and {second:.2f} of the robust one", xlabel="weight 1")
        print(f"{title}: sd {first:.3f} and {second:.3f} of the robust one, {np.sqrt(np.diag(cov)).round(4)}")
    panels[0].set_ylabel("weight 2")
    return figure


def main() -> None:
    """Draw what was asked for."""
    made: dict[str, Callable[[], plt.Figure]] = {"clusters": clusters, "shape": shape, "torch": torch}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"which of them: {', '.join(made)}; all by default")
    parser.add_argument("--to", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.names or made:
        with mpl.rc_context(STYLE):
            try:
                figure = made[name]()
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error.name} is not installed")
                continue
            figure.tight_layout()
            figure.savefig(options.to / f"front-{name}.svg", metadata={"Date": None})
            print(options.to / f"front-{name}.svg")


if __name__ == "__main__":
    main()
