"""A small neural network: what its loss does not identify, and calibrated draws of its last layer.

The loss of a network is not convex, and its parameters are not identified. On a tanh network with hidden widths (2, 3) and
the diabetes data:

1. With a Gaussian prior three hidden units become copies of one another. Directions that tell them apart then carry no
   gradient noise: no chain moves along them, and no step matrix gives it a spread there.
2. With the hidden layers held fixed the problem is a convex one, and its draws are calibrated.

What the theory predicts about chains of the whole network, and what they do, is `equipoise reproduce figure-nn`.

Run it with `python examples/network.py`: half a minute on two cores.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

import equipoise as eq
from equipoise.experiments.designs import diabetes
from equipoise.experiments.network import fitted, loss, network, predict

DYNAMICS = eq.Dynamics(batch_size=32)


def last_layer(data: Any, prior_precision: float = 0.5, ess: float = 2000, restarts: int = 4) -> eq.Calibration:
    """Calibrated draws of the output layer, with the hidden layers where the fit left them."""
    fit = eq.fit(network(prior_precision, seed=2), data, restarts=restarts)
    frozen = {"layer0": False, "layer1": False, "layer2": True}
    head = eq.Model(loss, init=fit.params, trainable=frozen, prior_precision=prior_precision)
    return eq.calibrate(head, data, target="sandwich", ess=ess, progress=False)


def main() -> None:
    """Both parts, in order."""
    parser = argparse.ArgumentParser(description="A network's directions without noise, and draws of its last layer.")
    parser.add_argument("--smoke", action="store_true", help="everything, from one start and with fewer draws")
    smoke = parser.parse_args().smoke
    data, began, restarts = diabetes(), time.perf_counter(), 0 if smoke else 4

    print("1. The whole network with a Gaussian prior of precision 20\n")
    model, moments = fitted(20.0, restarts)
    print(f"weights into the three units of the second layer:\n{np.round(model.init['layer1']['weights'], 4)}")
    try:
        eq.tune(eq.moments(network(20.0), data, model.init), "sandwich", DYNAMICS)
    except eq.InfeasibleTarget as error:
        print(f"InfeasibleTarget: {error}")
    limit = eq.max_stable_step(moments, DYNAMICS)
    print(f"the units are copies; {moments.dim} directions carry gradient noise; steps up to {limit:.2f} are stable\n")

    print("2. Last-layer calibration: hidden layers fixed after a fit with prior precision 0.5\n")
    cal = last_layer(data, ess=1000 if smoke else 2000, restarts=restarts)
    print(cal.summary(), "\n")
    raw = load_diabetes().target
    expected = pd.DataFrame(cal.evaluate(predict, {"x": data["x"][:5]}, interval=0.9)) * raw.std() + raw.mean()
    expected["observed"] = raw[:5]
    print("Expected progression of five patients, with 90 % intervals for the expectation:\n")
    print(expected.round(1).to_string(), "\n")
    print(f"calibrated: {cal.diagnosis.ok}   ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
