"""PyTorch: an optimizer in loops of one's own, the loaders that feed it, and what is said of those that differ."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import equipoise as eq

torch = pytest.importorskip("torch", reason="run by make test-torch")
from tests.interop.test_torch import DATA, PRECISION, X, Y, eqt, linear, loss, regression, seeded  # noqa: E402

pytestmark = pytest.mark.torch
one_thread = pytest.fixture(autouse=True)(seeded)
fitted = pytest.fixture(scope="module")(regression)


def loop(net, chain, batches, steps, penalty=0.0, closure=False):
    """A user's own loop: loss of a batch, backward, step."""
    draws, taken = [], 0
    while taken < steps:
        for x, y in batches:

            def evaluate(x=x, y=y):
                chain.zero_grad()
                value = loss(net(x), y).mean() + penalty * sum((p**2).sum() for p in net.parameters())
                value.backward()
                return value

            if closure:
                chain.step(evaluate)
            else:
                evaluate()
                chain.step()
            draws.append(chain.flat())
            taken += 1
            if taken == steps:
                break
    return np.array(draws)


KINDS = {
    "plain": ({}, {}),
    "momentum": ({"momentum": 0.5, "inverse_temperature": 3000.0}, {}),
    "epochs": ({"batches": "epochs"}, {}),
    "control": ({"gradient": "control-variate"}, {"noise": "completed"}),
}


def started(fitted):
    problem, fit, _ = fitted
    net = linear()
    eqt.Model(net, loss).load(fit.theta)
    return problem, net


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_ones_own(kind, fitted) -> None:
    """In float32, with weight decay or the penalty in the loss; nothing is said of batches that match."""
    _, net = started(fitted)
    dynamics, options = KINDS[kind]
    tuning = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40, **dynamics), **options)
    batches = eqt.loader(DATA, 40, batches=tuning.dynamics.batches, seed=1)
    decay = PRECISION / len(X) if kind in ("plain", "control") else 0.0
    chain = eqt.SGD(net.parameters(), tuning, seed=5, weight_decay=decay, loader=batches)
    penalty = 0.0 if decay else 0.5 * PRECISION / len(X)
    draws = loop(net, chain, batches, 5000, penalty, closure=kind == "control")
    found = eq.diagnose(eq.Chains.from_draws(draws[500:], tuning), tuning)
    assert found.check("covariance").status == "ok", str(found)
    assert 0.85 < chain.watch.noise < 1.15
    assert chain.watch.cancelled < 0.1 if kind == "epochs" else 0.7 < chain.watch.cancelled < 2.0


def test_the_reference_is_the_gradient_of_all_rows(fitted) -> None:
    """Around weights that are not the minimiser: a step by hand."""
    _, net = started(fitted)
    dynamics = eq.Dynamics(batch_size=40, gradient="control-variate")
    tuning = eq.tune(fitted[2], "posterior", dynamics, noise="completed")
    chain = eqt.SGD(net.parameters(), tuning, seed=8)

    def closure(x, y):
        def evaluate():
            chain.zero_grad()
            value = loss(net(x), y).mean()
            value.backward()
            return value

        return evaluate

    state = chain.reference(closure(X, Y)).state_dict()
    chain = eqt.SGD(net.parameters(), tuning, seed=8)
    chain.load_state_dict(state)  # the reference is a part of it
    away = torch.linspace(-0.3, 0.3, 6)
    theta = torch.tensor(tuning.center, dtype=torch.float32) + away
    chain._write(theta)

    def slope(at, x, y):
        w, b = at[:4].reshape(2, 2), at[4:]
        at = [w.clone().requires_grad_(), b.clone().requires_grad_()]
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(x @ at[0].T + at[1], y).mean(), at)])

    center = torch.tensor(tuning.center, dtype=torch.float32)
    g = slope(theta, X[:40], Y[:40]) - slope(center, X[:40], Y[:40]) + slope(center, X, Y)
    before = chain.flat()
    chain.step(closure(X[:40], Y[:40]))
    shaken = (chain._root @ chain._normals(8, 0)).double().numpy()
    np.testing.assert_allclose(chain._root @ chain._root.T, tuning.noise, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(chain.flat() - before, shaken - tuning.step @ g.double().numpy(), atol=1e-5)
    with pytest.raises(eq.InvalidInput, match="closure"):
        chain.step()


def test_shuffled_loaders_are_detected(fitted) -> None:
    """At once where the loader is at hand; else by its gradients, which cancel over a pass."""
    _, net = started(fitted)
    tuning = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40))
    shuffled = torch.utils.data.DataLoader(DATA, batch_size=40, shuffle=True)
    with pytest.raises(eq.InvalidInput, match=r"shuffle=True.*batches='epochs'"):
        eqt.SGD(net.parameters(), tuning, loader=shuffled)
    chain = eqt.SGD(net.parameters(), tuning, weight_decay=PRECISION / len(X))
    with pytest.warns(eq.EquipoiseWarning, match="shuffle=True"):
        loop(net, chain, shuffled, 200)
    epochs = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40, batches="epochs"))
    chain = eqt.SGD(net.parameters(), epochs, weight_decay=PRECISION / len(X))
    with pytest.warns(eq.EquipoiseWarning, match="do not cancel"):
        loop(net, chain, eqt.loader(DATA, 40), 200)
    eqt.SGD(net.parameters(), epochs, loader=shuffled)
    drawn = torch.utils.data.DataLoader(DATA, 40, sampler=torch.utils.data.RandomSampler(DATA, replacement=True))
    eqt.SGD(net.parameters(), tuning, loader=drawn)
    ragged = torch.utils.data.RandomSampler(DATA, replacement=True, num_samples=410)
    for wrong, named in (
        (torch.utils.data.DataLoader(DATA, batch_size=40), "own order"),
        (eqt.loader(DATA, 20), "40 rows"),
        (eqt.loader(DATA, 40, batches="epochs"), "epochs"),
        (eqt.loader(DATA, 40, replacement=False), "replacement=False"),
        (torch.utils.data.DataLoader(DATA, 40, sampler=ragged), "smaller last batch"),
    ):
        with pytest.raises(eq.InvalidInput, match=named):
            eqt.SGD(net.parameters(), tuning, loader=wrong)


def test_other_batches_and_sums_are_named(fitted) -> None:
    _, net = started(fitted)
    tuning = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40))
    chain = eqt.SGD(net.parameters(), tuning, weight_decay=PRECISION / len(X))
    with pytest.warns(eq.EquipoiseWarning, match="gradient noise: it has"):
        loop(net, chain, eqt.loader(DATA, 10), 400)


def test_health_is_printed(fitted, capsys) -> None:
    _, net = started(fitted)
    tuning = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40))
    chain = eqt.SGD(net.parameters(), tuning, weight_decay=PRECISION / len(X))
    health = eqt.Health(chain, every=1000)
    loop(net, chain, eqt.loader(DATA, 40), 3000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "observed/predicted standard deviation" in lines[-1]
    assert "LOOK" not in lines[-1]
    assert health.draws.shape[1] == (3000 - health.burn_in) // health.thin
    assert health.diagnosis().check("guard").status == "ok"
    health.detach()
    loop(net, chain, eqt.loader(DATA, 40), 10)
    assert health.steps == 3000


def test_a_state_resumes_bit_for_bit(fitted, tmp_path) -> None:
    dynamics = eq.Dynamics(batch_size=40, momentum=0.5, inverse_temperature=3000.0)
    tuning = eq.tune(fitted[2], "sandwich", dynamics)

    def run(parts):
        _, net = started(fitted)
        chain = eqt.SGD(net.parameters(), tuning, seed=3)
        for k, part in enumerate(parts):
            if k:
                torch.save({"net": net.state_dict(), "chain": chain.state_dict()}, tmp_path / "state.pt")
                net, saved = linear(), torch.load(tmp_path / "state.pt", weights_only=True)
                net.load_state_dict(saved["net"])
                chain = eqt.SGD(net.parameters(), tuning, seed=3)
                chain.load_state_dict(saved["chain"])
            loop(net, chain, [(X[k : k + 40], Y[k : k + 40]) for k in part], len(part))
        return chain.flat()

    whole = run([range(20)])
    np.testing.assert_array_equal(run([range(12), range(12, 20)]), whole)
    other = eqt.SGD(linear().parameters(), eq.tune(fitted[2], "posterior", dynamics))
    with pytest.raises(eq.CheckpointMismatch):
        other.load_state_dict(eqt.SGD(linear().parameters(), tuning).state_dict())
    copied = copy.deepcopy(other)
    assert copied.tuning.dim == 6


def test_parameter_groups_are_refused(fitted) -> None:
    tuning = eq.tune(fitted[2], "sandwich", eq.Dynamics(batch_size=40))
    net = linear()
    with pytest.raises(eq.InvalidInput, match="parameter groups"):
        eqt.SGD([{"params": [net.weight]}, {"params": [net.bias]}], tuning)
    chain = eqt.SGD(net.named_parameters(), tuning)
    with pytest.raises(eq.InvalidInput, match="parameter groups"):
        chain.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(eq.InvalidInput, match="6 numbers; got 2"):
        eqt.SGD([net.bias], tuning)
    with pytest.raises(eq.InvalidInput, match="backward"):
        chain.step()


def test_loaders_draw_as_they_say() -> None:
    """Independent batches repeat rows, epochs have each once; seeds and passes decide."""
    numbered = torch.utils.data.TensorDataset(torch.arange(103))

    def batches(**options):
        made = eqt.loader(numbered, 10, **options)
        return [[b[0].numpy() for b in made] for _ in range(2)]

    first, second = batches(batches="epochs", seed=2)
    assert [len(b) for b in first] == [10] * 10 + [3]
    assert sorted(np.concatenate(first)) == list(range(103))
    assert not np.array_equal(first[0], second[0])
    assert len(batches(batches="epochs", drop_last=True)[0]) == 10
    one, _ = batches(seed=4)
    assert [len(b) for b in one] == [10] * 10
    np.testing.assert_array_equal(np.concatenate(one), np.concatenate(batches(seed=4)[0]))
    assert len(set(np.concatenate(batches(replacement=False)[0][:1]))) == 10
    counts = np.bincount(np.concatenate([np.concatenate(batches(seed=s)[0]) for s in range(200)]), minlength=103)
    # 20,000 rows over 103: Pearson's statistic of a uniform law, five standard deviations
    assert abs(((counts - counts.mean()) ** 2 / counts.mean()).sum() - 102) < 5 * np.sqrt(2 * 102)
    with pytest.raises(eq.InvalidInput, match="at most"):
        eqt.loader(numbered, 104)
