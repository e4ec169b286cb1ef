"""PyTorch: modules under every verb, weights that are brought, parts of networks, and what is said of what is wrong."""

from __future__ import annotations

import copy
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq

torch = pytest.importorskip("torch", reason="run by make test-torch")
eqt = pytest.importorskip("equipoise.interop.torch")
pytestmark = pytest.mark.torch

CE = torch.nn.CrossEntropyLoss(reduction="none")
PRECISION = 4.0


def loss(out, y):
    """Of three classes, the last of which has no parameters: then every direction has gradient noise."""
    return CE(torch.cat([out, torch.zeros_like(out[:, :1])], dim=1), y)


def seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)


one_thread = pytest.fixture(autouse=True)(seeded)


def rows(n=400, seed=0):
    """Three classes, and one label in ten at random: the model is wrong, so that sandwich and posterior differ."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * [1.0, 2.0]
    eta = np.column_stack([x @ [1.0, 0.2], x @ [-0.5, 0.4], np.zeros(n)]) + rng.gumbel(size=(n, 3))
    y = np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), eta.argmax(1))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


X, Y = rows()
DATA = torch.utils.data.TensorDataset(X, Y)


def linear():
    return torch.nn.Linear(2, 2)


class Through(torch.nn.Module):
    """A function as a layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def jax_twin():
    def row_loss(p, row):
        eta = jnp.append(p["weight"] @ row["x"] + p["bias"], 0.0)
        return jax.nn.logsumexp(eta) - eta[row["y"]]

    init = {"weight": np.zeros((2, 2)), "bias": np.zeros(2)}
    return eq.Model(row_loss, init=init, prior_precision=PRECISION), {"x": X.numpy().astype(float), "y": Y.numpy()}


def regression():
    """The problem of three classes, its fit and moments there."""
    problem = eq.bind(eqt.Model(linear(), loss, prior_precision=PRECISION), (X, Y))
    fit = eq.fit(problem)
    return problem, fit, eq.moments(problem, fit)


fitted = pytest.fixture(scope="module")(regression)


def test_everything_is_what_jax_finds(fitted) -> None:
    """Fit, moments, K(S), third derivatives, tails and leverages, by two libraries."""
    problem, fit, ours = fitted
    model, data = jax_twin()
    theirs = eq.moments(model, data, eq.fit(model, data))
    assert problem.names[:2] == ("weight[0,0]", "weight[0,1]")
    order = [*range(2, 6), *range(2)]  # JAX sorts names: bias first
    turn = np.ix_(order, order)
    np.testing.assert_allclose(fit.theta, theirs.params[order], atol=1e-8)
    for name in ("hessian", "loss_hessian", "score_cov"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name)[turn], atol=1e-8)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    S = root @ root.T
    back = np.argsort(order)
    np.testing.assert_allclose(ours.curvature_noise(S), theirs.curvature_noise(S[np.ix_(back, back)])[turn], rtol=1e-7)
    third = theirs.third_derivative(S[np.ix_(back, back)])[order]
    np.testing.assert_allclose(ours.third_derivative(S), third, rtol=1e-7, atol=1e-9)
    dynamics = eq.Dynamics(batch_size=30, batches="leverage", gradient="control-variate")
    one, other = (eq.tune(m, "sandwich", dynamics, noise="completed") for m in (ours, theirs))
    np.testing.assert_allclose(one.predicted.worst_kurtosis, other.predicted.worst_kurtosis, rtol=1e-5)
    np.testing.assert_allclose(one.predicted.skewness, other.predicted.skewness[order], atol=1e-6)


@pytest.mark.filterwarnings("ignore::equipoise.errors.EquipoiseWarning")
def test_one_call(fitted, tmp_path) -> None:
    problem, _, _ = fitted
    cal = eq.calibrate(problem, target="sandwich", ess=400, chains=2, progress=False)
    assert cal.diagnosis.check("covariance").status == "ok", str(cal.diagnosis)
    assert cal.chains.tree()["weight"].shape == (*cal.draws.shape[:2], 2, 2)
    out = problem.model.outputs(cal.chains.flat()[:20], X[:5])
    by_hand = np.einsum("sij,nj->sni", cal.chains.tree()["weight"].reshape(-1, 2, 2)[:20], X[:5].numpy())
    by_hand += cal.chains.tree()["bias"].reshape(-1, 1, 2)[:20]
    np.testing.assert_allclose(out, by_hand, rtol=1e-6)
    density = cal.to_arviz(log_likelihood=True)["log_likelihood"]["y"].to_numpy()[0, :20, :5]
    by_hand = np.stack([-loss(each, Y[:5]).numpy() for each in torch.from_numpy(out)])
    np.testing.assert_allclose(density, by_hand, rtol=1e-6)
    again = eq.load(cal.save(tmp_path / "run.eqz"))
    np.testing.assert_array_equal(again.chains.tree()["bias"], cal.chains.tree()["bias"])


def test_the_same_seed_gives_the_same_draws(fitted) -> None:
    problem, _, moments = fitted
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=40, momentum=0.4))
    options = {"draws": 20, "chains": 3, "thin": 3, "burn_in": 5, "progress": False, "seed": 4}
    one, other = (eq.sample(problem, tuning, threads=threads, **options).draws for threads in (1, 2))
    np.testing.assert_array_equal(one, other)


def test_weights_that_are_brought_are_certified() -> None:
    """Adam in float32 to a rough minimum, LBFGS to a good one; both far from what Newton reaches."""
    net = linear()
    model = eqt.Model(net, loss, prior_precision=PRECISION)

    def train(optimizer, steps):
        def closure():
            optimizer.zero_grad()
            value = loss(net(X), Y).mean() + 0.5 * PRECISION / len(X) * sum((p**2).sum() for p in net.parameters())
            value.backward()
            return value

        for _ in range(steps):
            optimizer.step(closure)

    train(torch.optim.Adam(net.parameters(), lr=0.05), 15)
    with pytest.raises(eq.FitFailed, match="posterior standard deviations from the minimiser"):
        eqt.certify(eqt.Model(net, loss, prior_precision=PRECISION), (X, Y))
    train(torch.optim.LBFGS(net.parameters(), max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12), 3)
    model = eqt.Model(net, loss, prior_precision=PRECISION)
    found = eqt.certify(model, (X, Y))
    assert 1e-9 < found.gradient_norm < 0.05
    exact = eq.fit(model, (X, Y))
    away = found.theta - exact.theta
    moments = eq.moments(model, (X, Y), exact)
    assert np.sqrt(moments.n * away @ moments.hessian @ away) == pytest.approx(found.gradient_norm, rel=0.05)
    tuned = eq.tune(eq.moments(model, (X, Y), found), "sandwich", eq.Dynamics(batch_size=40))
    assert tuned.residual < 1e-8
    flat = eqt.Model(torch.nn.Linear(2, 3), CE)
    with pytest.raises(eq.FitFailed, match="does not curve"):
        eqt.certify(flat, (X, Y))


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, n):
        return X[n], Y[n]


def test_parts_of_a_network_and_datasets() -> None:
    """The last layer by a prefix, by names and by a function, on a dataset; dropout is off, and the user's module as before."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    before = copy.deepcopy(net.state_dict())
    kinds = ("3.", ["3.weight", "3.bias"], lambda name: name.startswith("3"))
    models = [eqt.Model(net, CE, trainable=kind, prior_precision=1.0) for kind in kinds]
    fits = [eq.fit(model, data) for model, data in zip(models, ((X, Y), DATA, Pairs()), strict=True)]
    for fit in fits:
        assert fit.theta.size == 18
        np.testing.assert_allclose(fit.theta, fits[0].theta, atol=1e-7)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert net.training
    hidden = torch.tanh(X.double() @ net[0].weight.double().T + net[0].bias.double()).detach().numpy()
    twin = eq.Model(
        lambda p, o: jax.nn.logsumexp(p[:, :5] @ o["h"] + p[:, 5]) - (p[:, :5] @ o["h"] + p[:, 5])[o["y"]],
        init=jnp.zeros((3, 6)),
        prior_precision=1.0,
    )
    theirs = eq.fit(twin, {"h": hidden, "y": Y.numpy()}).params
    np.testing.assert_allclose(fits[0].params["3.weight"], theirs[:, :5], atol=1e-6)
    frozen = copy.deepcopy(net)
    frozen[0].requires_grad_(False)
    assert eqt.Model(frozen, CE, prior_precision=1.0).structure.dim == 18


@pytest.mark.filterwarnings("ignore::equipoise.errors.EquipoiseWarning")
def test_a_subspace_of_a_network() -> None:
    """Curvature in the span of a few directions, regulariser included; draws of all weights from coordinates."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = eqt.Model(net, loss, prior_precision=2.0)
    fit = eq.fit(model, (X, Y))
    H = eq.moments(model, (X, Y), fit).hessian
    small = eq.subspace(model, (X, Y), fit, rank=3, of="curvature")
    basis = small.subspace[1]
    np.testing.assert_allclose(np.diag(basis @ H @ basis.T), np.linalg.eigvalsh(H)[::-1][:3], rtol=1e-6)
    inside = eq.moments(small, (X, Y), np.zeros(3))
    np.testing.assert_allclose(inside.hessian, basis @ H @ basis.T, atol=1e-8)
    cal = eq.calibrate(small, (X, Y), target="posterior", ess=50, chains=2, fidelity=0.0, progress=False)
    whole = cal.chains.tree()["0.weight"]
    assert whole.shape == (*cal.draws.shape[:2], 4, 2)
    np.testing.assert_allclose(whole.reshape(-1, 8), (fit.theta + cal.chains.flat() @ basis)[:, :8], atol=1e-10)


@pytest.mark.parametrize(("target", "precision"), [("posterior", 1.0), ("sandwich", 1.0), ("posterior", 0.0)])
def test_a_softmax_with_a_score_for_every_class(target, precision) -> None:
    """Along three of nine directions no score varies: a prior gives the posterior all of them, other runs leave them out."""
    model = eqt.Model(torch.nn.Linear(2, 3), CE, prior_precision=precision)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan = eq.plan(model, (X, Y), target=target)
    whole = target == "posterior" and precision > 0.0
    assert plan.moments.dim == (9 if whole else 6)
    assert plan.sampler == "control-variate"
    assert [bool(re.search("along 3 of 9", str(w.message))) for w in told] == ([] if whole else [True])
    if target == "sandwich":
        problem = eq.bind(model, (X, Y))
        m, basis = eq.moments(problem, plan.fit.params), plan.model.subspace[1]
        expected = np.linalg.solve(m.hessian, np.linalg.solve(m.hessian, m.score_cov).T) / m.n
        np.testing.assert_allclose(basis.T @ plan.tuning.target @ basis, expected, rtol=1e-6, atol=1e-12)


def test_a_regulariser_of_ones_own() -> None:
    gaussian = eqt.Model(linear(), loss, prior_precision=PRECISION)
    own = eqt.Model(
        linear(), loss, regularizer=lambda p: 0.5 * PRECISION * sum((value**2).sum() for value in p.values())
    )
    one, other = (eq.moments(m, (X, Y), eq.fit(m, (X, Y))) for m in (gaussian, own))
    np.testing.assert_allclose(one.hessian, other.hessian, atol=1e-8)
    S = np.diag(np.arange(1.0, 7.0))
    np.testing.assert_allclose(one.third_derivative(S), other.third_derivative(S), atol=1e-7)


@pytest.mark.parametrize(
    ("make", "data", "named"),
    [
        (lambda: eqt.Model(torch.nn.Linear(2, 3), torch.nn.CrossEntropyLoss()), (X, Y), "reduction='none'"),
        (lambda: eqt.Model(torch.nn.Linear(5, 3), CE), (X, Y), "RuntimeError"),
        (lambda: eqt.Model(linear(), CE, trainable=["head"]), (X, Y), "'head'"),
        (lambda: eqt.Model(linear(), CE, prior_precision=np.ones(4)), (X, Y), "prior_precision"),
        (lambda: eqt.Model(CE.forward, CE), (X, Y), "torch.nn.Module"),
        (lambda: eqt.Model(linear(), CE), {"x": X}, "map-style dataset"),
        (lambda: eqt.Model(linear(), CE), [{"x": X[0], "y": Y[0]}], "a row that is"),
        (
            lambda: eqt.Model(torch.nn.Sequential(linear(), Through(torch.nn.functional.dropout)), loss),
            (X, Y),
            "dropout",
        ),
        (
            lambda: eqt.Model(torch.nn.Sequential(Through(lambda x: x - x.mean(0)), linear()), loss),
            (X, Y),
            "other rows",
        ),
        (
            lambda: eqt.Model(torch.nn.Sequential(torch.nn.BatchNorm1d(2, track_running_stats=False), linear()), loss),
            (X, Y),
            "batch norm",
        ),
    ],
)
def test_what_is_wrong_is_named(make, data, named) -> None:
    with warnings.catch_warnings(), pytest.raises(eq.InvalidInput, match=named):
        eq.bind(make(), data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("beside", ["weights", "frequency"])
def test_weights_and_frequencies_are_those_of_a_regression(beside, dtype) -> None:
    """A logistic regression as a module, against eq.glm on the same weighted rows; float32 to its own precision."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(300, 2)).astype(np.float32).astype(float)
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-x @ [1.0, -0.5] - 0.3))).astype(float)
    given = {beside: rng.uniform(0.2, 3.0, 300) if beside == "weights" else rng.integers(0, 4, 300)}
    bce = torch.nn.BCEWithLogitsLoss(reduction="none")
    module = torch.nn.Linear(2, 1).to(dtype)
    model = eqt.Model(module, lambda out, t: bce(out[:, 0], t), prior_precision=PRECISION)
    data = eq.data.observations((torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)), **given)
    glm = eq.glm("bernoulli", prior_precision=PRECISION)
    rows = eq.data.rows(np.column_stack([x, np.ones(300)]), y, **given)
    ours, theirs = eq.fit(model, data), eq.fit(glm, rows)
    np.testing.assert_allclose(ours.theta, theirs.theta, atol=1e-8)
    moments, known = eq.moments(model, data, ours), eq.moments(glm, rows, theirs)
    assert moments.n == known.n
    for covariance in (eq.sandwich, eq.posterior):
        np.testing.assert_allclose(covariance(moments), covariance(known), rtol=1e-6, atol=1e-12)


def test_certified_where_the_loss_is_flat_by_the_message_s_advice() -> None:
    """Softmax with a score for every class is flat: a prior, or fewer parameters, and then eq.fit, as the messages say."""
    net = torch.nn.Linear(2, 3)
    with pytest.raises(eq.FitFailed, match=r"prior_precision.*target='posterior'.*trainable"):
        eqt.certify(eqt.Model(net, CE), (X, Y))
    model = eqt.Model(net, CE, prior_precision=PRECISION)
    with pytest.raises(eq.FitFailed, match=r"polish them with eq.fit\(model, data\)"):
        eqt.certify(model, (X, Y))
    polished = eq.fit(model, (X, Y))
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(torch.tensor(polished.params[name]))
    found = eqt.certify(eqt.Model(net, CE, prior_precision=PRECISION), (X, Y))
    assert found.gradient_norm < 0.05
    moments = eq.moments(model, (X, Y), found)
    dynamics = eq.Dynamics(batch_size=100, gradient="control-variate")
    tuned = eq.tune(moments, "posterior", dynamics, noise="completed")
    np.testing.assert_allclose(tuned.predicted.cov, eq.posterior(moments), rtol=1e-6, atol=1e-10)
    fewer = eqt.Model(linear(), loss)
    assert eq.fit(fewer, (X, Y)).converged
