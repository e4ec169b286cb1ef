"""Schedulers around a tuned chain: one that changes nothing runs, one that changes the step is refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

torch = pytest.importorskip("torch", reason="run by make test-torch")
eqt = pytest.importorskip("equipoise.interop.torch")
pytestmark = pytest.mark.torch


def chain(momentum=0.0):
    x = np.random.default_rng(0).normal(size=(200, 3))
    moments = eq.Moments.from_arrays(x * x[:, :1], x[:, :, None] * x[:, None, :])
    theta = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    return theta, eqt.SGD([theta], eq.tune(moments, "sandwich", eq.Dynamics(20, momentum)))


def steps(theta, optimizer, scheduler=None, count=3):
    for _ in range(count):
        theta.grad = torch.ones(3, dtype=torch.float64)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return theta.detach().numpy().copy()


def test_a_schedule_that_changes_nothing_changes_no_bit() -> None:
    theta, optimizer = chain(0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    np.testing.assert_array_equal(steps(theta, optimizer, scheduler), steps(*chain(0.5)))


@pytest.mark.parametrize(
    ("make", "taken", "named"),
    [
        (lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.1), 2, "lr: must be 1 .*got 0.1"),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4), 1, "lr: must be 1 "),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=9), 0, "lr: must be 1 .*got 0.04"),
        (
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, base_lr=1.0, max_lr=1.0, base_momentum=0.1),
            0,
            "momentum: must be 0.5 .*got 0.9",
        ),
    ],
)
def test_a_schedule_that_changes_steps_is_refused_before_it_does(make, taken, named) -> None:
    theta, optimizer = chain(0.5)
    scheduler = make(optimizer)
    before = steps(theta, optimizer, scheduler, taken)
    with pytest.raises(eq.InvalidInput, match=named) as refused:
        steps(theta, optimizer, scheduler, 1)
    assert "the draws have another covariance" in str(refused.value)
    assert "eq.Tuning.at" in str(refused.value)
    np.testing.assert_array_equal(theta.detach().numpy(), before)


def test_a_state_of_something_else_is_refused_in_words() -> None:
    theta, optimizer = chain()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for state in (scheduler.state_dict(), torch.optim.SGD([theta], lr=0.1).state_dict()):
        with pytest.raises(eq.CheckpointMismatch, match="another tuning"):
            optimizer.load_state_dict(state)


def test_a_state_from_before_there_was_a_learning_rate_resumes() -> None:
    theta, optimizer = chain()
    steps(theta, optimizer)
    state = optimizer.state_dict()
    for name in ("lr", "momentum"):
        del state["param_groups"][0][name]
    again, resumed = chain()
    resumed.load_state_dict(state)
    with torch.no_grad():
        again.copy_(theta)
    np.testing.assert_array_equal(steps(again, resumed), steps(theta, optimizer))
