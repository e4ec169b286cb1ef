"""Three cultivars of wine: a multinomial logistic regression of your own, with calibrated class probabilities.

Any differentiable loss can be calibrated, not only the built-in families. Here the loss is written in six lines of JAX,
its parameters are a dictionary of arrays, and everything else is as for a built-in model: the fit, the step matrix, the
draws, the diagnosis, and predictions with intervals.

Run it with `python examples/softmax.py`; it takes a few seconds.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

import equipoise as eq

COLUMNS = ["alcohol", "flavanoids", "color_intensity", "proline"]
CLASSES = 3


def wine() -> tuple[dict[str, Any], dict[str, Any]]:
    """178 wines: four standardised measurements and the cultivar; every fifth wine is held out."""
    table = load_wine(as_frame=True)
    x = table.data[COLUMNS].to_numpy()
    x, label = (x - x.mean(axis=0)) / x.std(axis=0), table.target.to_numpy()
    held = np.arange(len(label)) % 5 == 2
    return {"x": x[~held], "label": label[~held]}, {"x": x[held], "label": label[held]}


def scores(params: Any, row: Any) -> Any:
    """Log odds of every class against the first, whose score is zero: otherwise nothing would identify them."""
    return jnp.concatenate([jnp.zeros(1), params["weights"] @ row["x"] + params["intercept"]])


def loss(params: Any, row: Any) -> Any:
    """Minus the log probability of the observed class."""
    s = scores(params, row)
    return jax.nn.logsumexp(s) - s[row["label"]]


def probabilities(params: Any, row: Any) -> Any:
    """The probability of every class."""
    return jax.nn.softmax(scores(params, row))


def main() -> None:
    """Fit, calibrate, diagnose, predict."""
    train, test = wine()
    # The first parameters also give the structure of every result. A small prior keeps the weights finite: four
    # measurements almost separate the cultivars. What is calibrated is the spread of the estimate with that prior.
    start = {"weights": np.zeros((CLASSES - 1, len(COLUMNS))), "intercept": np.zeros(CLASSES - 1)}
    model = eq.Model(loss, init=start, prior_precision=1.0)

    fit = eq.fit(model, train)
    print("Weights of the second and third cultivar against the first:\n")
    print(pd.DataFrame(fit.params["weights"], columns=COLUMNS, index=["second", "third"]).round(2).to_string(), "\n")

    # One call does all of it, the fit included. The target is the sandwich: the spread that estimates would have over
    # new samples of wines, whether or not the log odds are really linear.
    cal = eq.calibrate(model, train, target="sandwich", ess=2000, progress=False)
    print(cal.summary(), "\n")

    # The draws are flat; in the structure of the parameters they have leading axes (chains, draws).
    tree = cal.chains.tree()
    print(f"draws: {cal.draws.shape}; weights among them: {tree['weights'].shape}\n")

    # What was predicted before the first step, and what the chains did. A mean that is shifted as predicted is not an
    # error of the sampler: with this few wines the loss is not quadratic at the scale of its standard errors.
    print(cal.diagnosis, "\n")

    found = cal.evaluate(probabilities, test, interval=0.9)
    right = (found["estimate"].argmax(axis=1) == test["label"]).mean()
    print(f"{right:.0%} of {len(test['label'])} held-out wines get the highest probability for their own cultivar.")
    print("Probabilities with 90 % intervals, for the four wines that are hardest to tell and one that is easy:\n")
    order = np.argsort(found["estimate"].max(axis=1))
    shown = [*order[:4], order[-1]]
    table = pd.DataFrame(
        {
            f"cultivar {k + 1}": [
                f"{found['estimate'][i, k]:.2f} [{found['lower'][i, k]:.2f}, {found['upper'][i, k]:.2f}]" for i in shown
            ]
            for k in range(CLASSES)
        },
        index=pd.Index(shown, name="wine"),
    )
    table["is"] = test["label"][shown] + 1
    print(table.to_string())


if __name__ == "__main__":
    main()
