"""The table of the README: a few rows, each about something that a newcomer would ask."""

from __future__ import annotations

from typing import Any

from benchmarks.suite.report import number, sampler_rates, table

__all__ = ["short"]

_NUTS = ("NumPyro NUTS", "NumPyro NUTS in one compiled scan")


def short(data: dict[str, Any]) -> str:
    """At most eight rows: whole jobs, effective draws per second, and rows beyond memory."""
    sections = data["sections"]
    rows = [*_jobs(sections), *_draws(sections), *_files(sections)]
    machine = data["machine"]
    words = "A smoke run: its times mean nothing.\n\n" if data["settings"]["smoke"] else ""
    said = f"{words}{machine['processor']}, {machine['cores']} cores, {data['machine']['memory_gb']:g} GB."
    return "\n\n".join([table(["", "Equipoise", "others"], rows), said]) + "\n" if rows else said + "\n"


def _jobs(sections: dict[str, Any]) -> list[list[str]]:
    """Whole jobs on one thread: ours, and everyone's who was there."""
    words = {
        "W2": "Poisson regression, 5000 × 50: robust errors, 1000 draws",
        "W3": "Logistic regression, 1,000,000 × 100: the same",
    }
    rows = []
    for name, what in words.items():
        jobs = {
            k: j["seconds"] for k, j in sections.get("jobs", {}).get(name, {}).get("jobs", {}).items() if "seconds" in j
        }
        ours = jobs.pop("equipoise", None)
        if ours is not None:
            rows.append([what, f"{number(ours)} s", "; ".join(f"{k}: {number(s)} s" for k, s in jobs.items())])
    return rows


def _draws(sections: dict[str, Any]) -> list[list[str]]:
    """Effective draws per second of W2: the posterior with its shape, and the sandwich."""
    rates = sampler_rates(sections.get("second_law", {}).get("W2", {}))
    best = sampler_rates(sections.get("tuned", {}).get("W2", {}).get("best", {}))
    tuned = {f"BlackJAX SGLD, tuned by hand, {kind}": rate for kind, rate in best.items()}
    pairs = {
        "Posterior with its shape (fidelity 0.9), effective draws per second": (
            "control variates, posterior, fidelity 0.9", {k: rates[k] for k in _NUTS if k in rates} | tuned,
        ),
        "Sandwich covariance, effective draws per second": (
            "control variates, sandwich", {k: rates[k] for k in ("plain SGD", "independent Gaussian draws") if k in rates},
        ),
    }  # fmt: skip
    return [
        [what, number(rates[ours]), "; ".join(f"{k}: {number(r)}" for k, r in others.items())]
        for what, (ours, others) in pairs.items()
        if ours in rates
    ]


def _files(sections: dict[str, Any]) -> list[list[str]]:
    """The largest files that were read."""
    runs = sections.get("rows", {}).get("runs", {})
    largest = sorted((int(n) for n, run in runs.items() if "seconds" in run), reverse=True)[:2]
    return [
        [
            f"{n:,} rows in Parquet, clustered errors, 1000 draws",
            f"{number(runs[str(n)]['seconds'])} s, {runs[str(n)]['peak MB'] / 1e3:.1f} GB of memory",
            "",
        ]
        for n in sorted(largest)
    ]
