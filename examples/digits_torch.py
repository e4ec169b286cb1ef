"""The digits example in PyTorch: a network of 107,000 parameters, sampled in a training loop of one's own and in a subspace.

The network is trained as usual, by Adam with weight decay. Its last layer is polished and tuned by Equipoise; then the loop
that trained the network goes on with another optimizer, `eqt.SGD`, whose iterates are draws of the last layer's posterior.
`eqt.Health` prints, while it runs, how they compare with what was predicted. After that all weights move, in a few directions
in which training did (`eq.subspace`), by the library's own chain.

Run it with `python examples/digits_torch.py`: two minutes on two cores. It needs `pip install '.[torch]'`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from digits_common import digits, keep, shown, table
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.interop import torch as eqt

PRECISION = 1.0  # of the Gaussian prior on every weight: weight decay of PRECISION / N
BATCH = 60
CRITERION = torch.nn.CrossEntropyLoss(reduction="none")


def network() -> Any:
    """Two hidden layers, the second narrow."""
    layers = [torch.nn.Linear(64, 1100), torch.nn.Tanh(), torch.nn.Linear(1100, 32), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))


def train(net: Any, dataset: Any, epochs: int) -> list[Any]:
    """The usual way; the weights at the end of each epoch of the second half, which tell in which directions it moved."""
    path = []
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=PRECISION / len(dataset))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        for x, y in DataLoader(dataset, batch_size=100, shuffle=True):
            optimizer.zero_grad()
            CRITERION(net(x), y).mean().backward()
            optimizer.step()
        schedule.step()
        if epoch >= epochs // 2:
            path.append(parameters_to_vector(net.parameters()).detach().double().numpy())
    return path


def probabilities(net: Any, images: Any) -> Any:
    """What the network says now."""
    with torch.no_grad():
        return net(torch.as_tensor(images, dtype=torch.float32)).softmax(dim=1).double().numpy()


def sampled_head(net: Any, dataset: Any, images: dict[str, Any], steps: int) -> tuple[Any, Any]:
    """Predictions of the last layer at its minimum, and averaged over what the loop goes through after it."""
    # the layers before the last are held fixed: no gradient is needed of them
    net[:4].requires_grad_(False)
    # the last layer as a model: fitted from where training left it, and tuned
    model = eqt.Model(net, CRITERION, prior_precision=PRECISION)
    problem = eq.bind(model, dataset)
    fit = eq.fit(problem)
    dynamics = eq.Dynamics(batch_size=BATCH, gradient="control-variate")
    tuning = eq.tune(eq.moments(problem, fit), "posterior", dynamics, noise="completed", fidelity=0.9)
    model.load(fit.theta)
    fitted = {kind: probabilities(net, some) for kind, some in images.items()}

    # the loop goes on, with another optimizer and a loader whose batches are the tuning's
    loader = eqt.loader(dataset, BATCH, seed=1)
    chain = eqt.SGD(net[4].parameters(), tuning, weight_decay=PRECISION / len(dataset), loader=loader)
    health = eqt.Health(chain, every=1000)
    sums, count = dict.fromkeys(images, 0.0), 0
    while health.steps < steps:
        for some, targets in loader:

            def closure(some: Any = some, targets: Any = targets) -> Any:
                chain.zero_grad()
                loss = CRITERION(net(some), targets).mean()
                loss.backward()
                return loss

            chain.step(closure)
            if health.steps > health.burn_in and health.steps % 10 == 0:
                sums = {kind: sums[kind] + probabilities(net, images[kind]) for kind in images}
                count += 1
    print(f"\n{tuning.dim} of them, the last layer, sampled: {health.steps:,} steps, {count:,} predictions averaged")
    return fitted, {kind: total / count for kind, total in sums.items()}


def sampled_subspace(net: Any, dataset: Any, images: dict[str, Any], path: list[Any], rank: int) -> Any:
    """Predictions averaged over draws of all weights, in directions in which training moved."""
    net.requires_grad_(True)
    model = eqt.Model(net, CRITERION, prior_precision=PRECISION)
    small = eq.subspace(model, dataset, path[-1], rank=rank, of=np.array(path))
    cal = eq.calibrate(small, dataset, target="posterior", ess=100, tuning_rows=300, seed=0, progress=False)
    print(f"{model.structure.dim:,} of them in {rank} directions, sampled: {cal.plan.rows:,} rows\n")
    draws = cal.chains.flat()[:: max(1, len(cal.chains.flat()) // 100)]
    outputs = {kind: small.outputs(draws, torch.as_tensor(some)) for kind, some in images.items()}
    return {kind: torch.as_tensor(out).softmax(dim=-1).mean(dim=0).numpy() for kind, out in outputs.items()}


def main() -> None:
    """Train, let the loop go on with the last layer, sample a subspace, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="steps of the chain")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of training")
    parser.add_argument("--rank", type=int, default=5, help="directions of the subspace; 0 leaves it out")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for matrices this small, threads wait longer than they work
    x, x_test, y, y_test = digits()
    dataset = TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    net, images, found = network(), shown(x_test), {}
    path = train(net, dataset, options.epochs)
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, trained by Adam")
    keep(found, "one network", {kind: probabilities(net, some) for kind, some in images.items()}, y_test)
    fitted, sampled = sampled_head(net, dataset, images, options.steps)
    keep(found, "last layer, fitted", fitted, y_test)
    keep(found, "last layer, own loop", sampled, y_test)
    if options.rank:
        keep(found, "subspace of training", sampled_subspace(net, dataset, images, path, options.rank), y_test)
    print(table(found))


if __name__ == "__main__":
    main()
