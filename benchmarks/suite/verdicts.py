"""What the figures are held against: one line per claim, with what was measured and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Verdict", "verdicts"]

_LOOP = "NumPy loop"
_SCAN = "BlackJAX in a scan"


@dataclass(frozen=True)
class Verdict:
    """One claim.

    Attributes
    ----------
    what, against
        What is measured, and what it is compared with.
    measured
        A number, or None when there is none.
    low, high
        The claim: at least `low`, at most `high`.
    unit
        Written after the numbers.
    note
        Why there is no number.
    """

    what: str
    against: str
    measured: float | None
    low: float | None = None
    high: float | None = None
    unit: str = "×"
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether the claim holds; None when nothing was measured."""
        if self.measured is None:
            return None
        return (self.low is None or self.measured >= self.low) and (self.high is None or self.measured <= self.high)

    @property
    def wanted(self) -> str:
        """The claim in words."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}–{self.high:g}{self.unit}"
        return f"≥ {self.low:g}{self.unit}" if self.low is not None else f"≤ {self.high:g}{self.unit}"


def verdicts(data: dict[str, Any]) -> list[Verdict]:
    """All claims that a run's sections can speak to."""
    sections = data["sections"]
    rules = {
        "W1": _throughput,
        "W2": _throughput,
        "W3": _throughput,
        "second_law": _second_law,
        "whole_job": _whole_job,
        "steps": _steps,
        "ess": _effective,
        "roofline": _roofline,
        "threads": _threads,
        "passes": _passes,
        "intervals": _intervals,
        "memory": _memory,
        "offline": _offline,
        "step_matrix": _step_matrix,
        "start_up": _start_up,
    }
    found: list[Verdict] = []
    for name, rule in rules.items():
        section = sections.get(name)
        if section is None:
            continue
        note = _absent(section)
        found += [Verdict(name, "", None, low=0.0, note=note)] if note else list(rule(section))
    return found


def _absent(result: dict[str, Any]) -> str:
    if "not_installed" in result:
        return f"{result['not_installed']} is not installed"
    return " ".join(result.get("error", "").split())[:80]


def _throughput(section: dict[str, Any]) -> Iterator[Verdict]:
    for label, cell in section["cells"].items():
        workload, batch = label.split()[:2]
        large, small = workload == "W3", batch == "B=16"
        wanted = {_SCAN: 2.5 if large else 8.0 if small else 4.0, _LOOP: 4.0 if large else 8.0}
        for peer, low in wanted.items():
            if peer in cell:
                yield _ratio(label, "equipoise", peer, cell, low)
        if "equipoise JAX engine" in cell:
            yield _ratio(label, "equipoise JAX engine", "JAX scan, by hand", cell, 1.0)


def _ratio(label: str, ours: str, peer: str, cell: dict[str, Any], low: float) -> Verdict:
    what = label if ours == "equipoise" else f"{label}, {ours.removeprefix('equipoise ')}"
    for result in (cell[ours], cell[peer]):
        if "rate" not in result:
            return Verdict(what, peer, None, low=low, note=_absent(result))
    return Verdict(what, peer, cell[ours]["rate"] / cell[peer]["rate"], low=low)


# The sampler, what it is held against, by how much it should be faster, and where.
_SECOND_LAW = (
    ("control variates, sandwich", "plain SGD", 30.0, ("W1", "W2")),
    ("control variates, sandwich", "plain SGD", 2000.0, ("W3",)),
    ("control variates, posterior", "NumPyro NUTS", 200.0, ("W1", "W2")),
    ("control variates, posterior, fidelity 0.9", "NumPyro NUTS", 40.0, ("W1", "W2")),
)


def _second_law(section: dict[str, Any]) -> Iterator[Verdict]:
    for ours, theirs, low, workloads in _SECOND_LAW:
        for workload in workloads:
            if workload in section:
                found = section[workload]
                pair = [found.get(name, found) for name in (ours, theirs)]
                yield _faster(f"{workload}, effective draws per second, {ours}", theirs, pair, low)


def _faster(what: str, against: str, pair: list[dict[str, Any]], low: float) -> Verdict:
    """How many times as many effective draws per second the first of two has."""
    rates = [result.get("ess_per_second") for result in pair]
    note = next((_absent(result) for result in pair if _absent(result)), "")
    return Verdict(what, against, rates[0] / rates[1] if all(rates) else None, low=low, note=note)


def _whole_job(section: dict[str, Any]) -> Iterator[Verdict]:
    what = f"W3, from arrays to the summary, {section['ess']} effective draws"
    yield Verdict(what, "one pass over the data", section["passes"], high=30.0)
    note = _absent(section["statsmodels"])
    yield Verdict(what, "statsmodels' fit with HC0", section.get("share"), high=0.1, note=note)


def _steps(section: dict[str, Any]) -> Iterator[Verdict]:
    for name, case in section["cases"].items():
        measured = case.get("ratios", {}).get("control variates over SGLD")
        high = 2.2 if name.endswith("JAX") else 1.1
        yield Verdict(f"{name}, time of a step with control variates", "SGLD", measured, high=high, note=_absent(case))


def _effective(section: dict[str, Any]) -> Iterator[Verdict]:
    for workload, found in section.items():
        if not isinstance(found, dict):
            continue
        for ours, scope in (
            ("equipoise", "whole job"),
            ("equipoise", "whole job, compiled before"),
            ("plain SGD", "whole job"),
            ("plain SGD", "whole job, compiled before"),
            ("plain SGD", "sampling only"),
        ):
            # our compiled loops are on disk in any case
            name = f"{ours}, {scope.removesuffix(', compiled before')}"
            pair = [found.get(n, found) for n in (name, f"NumPyro NUTS, {scope}")]
            what = f"{workload}, effective draws per second, {ours}, {scope}"
            yield _faster(what, "NumPyro NUTS", pair, 20.0)


def _roofline(section: dict[str, Any]) -> Iterator[Verdict]:
    for name, share in section["share"].items():
        yield Verdict(f"W3 {name}, rows per second", "random-row bandwidth", 100.0 * share, low=55.0, unit=" %")


def _threads(section: dict[str, Any]) -> Iterator[Verdict]:
    for name, case in section["cases"].items():
        yield Verdict(f"{name}, 2 chains on 2 threads", "1 chain", case.get("ratio"), low=1.8, note=_absent(case))


def _passes(section: dict[str, Any]) -> Iterator[Verdict]:
    for name, case in section["cases"].items():
        what = f"effective draws per data pass, {name}"
        yield Verdict(what, "theory", case.get("observed"), low=0.9, high=1.1, unit="", note=_absent(case))


def _intervals(section: dict[str, Any]) -> Iterator[Verdict]:
    what = f"W2, intervals from {section['ess']} effective draws"
    yield Verdict(what, f"bootstrap of {section['replicates']} refits", section["ratio"], low=1.0)


def _memory(section: dict[str, Any]) -> Iterator[Verdict]:
    yield Verdict("peak memory at N = 10⁶, D = 100", "the data", section["ratio"], high=3.0)


def _offline(section: dict[str, Any]) -> Iterator[Verdict]:
    yield Verdict("W3 fit, moments and tuning", "one pass over the data", section["total_passes"], high=30.0)


def _step_matrix(section: dict[str, Any]) -> Iterator[Verdict]:
    milliseconds = 1e3 * section["seconds_at_5000_rows_50_columns"]
    yield Verdict("step matrix, D = 50, N = 5000", "", milliseconds, high=2.0, unit=" ms")
    yield Verdict("step matrix, D = 20", "Powell's method", section["powell"]["ratio"], low=30.0)
    yield Verdict("step matrix, exponent in D from 200", "D³", section["exponent_large"], high=3.3, unit="")


def _start_up(section: dict[str, Any]) -> Iterator[Verdict]:
    yield Verdict("equipoise fit on a small table, cold", "", section["cold"], high=5.0, unit=" s")
    yield Verdict("equipoise fit on a small table, warm", "", section["warm"], high=2.0, unit=" s")
