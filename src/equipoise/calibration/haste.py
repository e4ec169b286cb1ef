"""What to do about a run that will take long: said before its first step, where the plan is shown and where it starts."""

from __future__ import annotations

from equipoise.models.covariance import Covariance
from equipoise.sampling.budget import is_long

__all__ = ["faster"]


def faster(target: Covariance, seconds: float, ess: float) -> dict[str, str]:
    """A line of the plan that says how to get draws of the target sooner; none where they come soon enough.

    A two-way matrix that had to be repaired has next to no variance along some direction, which no step of a chain may
    overshoot: the chain crosses the others in very many small ones.
    """
    if not is_long(seconds):
        return {}
    ways = [
        "sampler='gaussian' draws from N(estimate, target) without a chain",
        f"ess={max(1.0, ess / 10):.0f} takes a tenth",
    ]
    if target.repaired:
        least = target.by[target.groups.index(min(target.groups))]
        ways.insert(1, f"clusters={least!r}, one way, needs no repair, which left a direction next to no variance")
    return {"to be faster": "; ".join(ways)}
