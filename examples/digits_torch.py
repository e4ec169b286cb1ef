"""The digits example in PyTorch, in a training loop of one's own: the last layer of 107,000 parameters, sampled by `eqt.SGD`.

The network is trained as usual, by Adam with weight decay. Its last layer is polished and tuned by Equipoise; then the loop
that trained the network goes on with another optimizer, whose iterates are draws of the last layer's posterior. `eqt.Health`
prints, while it runs, how they compare with what was predicted.

Run it with `python examples/digits_torch.py`: about a minute on two cores. It needs `pip install 'equipoise[torch]'`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from digits_common import digits, strange, table
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


def train(net: Any, dataset: Any, epochs: int) -> None:
    """The usual way."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=PRECISION / len(dataset))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for x, y in DataLoader(dataset, batch_size=100, shuffle=True):
            optimizer.zero_grad()
            CRITERION(net(x), y).mean().backward()
            optimizer.step()
        schedule.step()


def probabilities(net: Any, images: Any) -> Any:
    """What the network says now."""
    with torch.no_grad():
        return net(torch.as_tensor(images, dtype=torch.float32)).softmax(dim=1).double().numpy()


def main() -> None:
    """Train, tune the last layer, let the loop go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000, help="steps of the chain")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of training")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for matrices this small, threads wait longer than they work
    x, x_test, y, y_test = digits()
    dataset = TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    net = network()
    train(net, dataset, options.epochs)
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, trained by Adam")
    images = {"usual": x_test, **strange(x_test)}
    found = {"one network": {kind: probabilities(net, some) for kind, some in images.items()}}

    # the layers before the last are held fixed: no gradient is needed of them
    net[:4].requires_grad_(False)
    # the last layer as a model: fitted from where training left it, and tuned
    model = eqt.Model(net, CRITERION, prior_precision=PRECISION)
    problem = eq.bind(model, dataset)
    fit = eq.fit(problem)
    moments = eq.moments(problem, fit)
    dynamics = eq.Dynamics(batch_size=BATCH, gradient="control-variate")
    tuning = eq.tune(moments, "posterior", dynamics, noise="completed", fidelity=0.9)
    model.load(fit.theta)
    found["its minimum"] = {kind: probabilities(net, some) for kind, some in images.items()}

    # the loop goes on, with another optimizer and a loader whose batches are the tuning's
    loader = eqt.loader(dataset, BATCH, seed=1)
    chain = eqt.SGD(net[4].parameters(), tuning, weight_decay=PRECISION / len(dataset), loader=loader)
    health = eqt.Health(chain, every=1000)
    sums, count = dict.fromkeys(images, 0.0), 0
    while health.steps < options.steps:
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
    found["last layer"] = {kind: total / count for kind, total in sums.items()}
    print(f"\n{tuning.dim} of them, the last layer, sampled: {health.steps:,} steps, {count:,} predictions averaged\n")
    print(table(found, y_test))


if __name__ == "__main__":
    main()
