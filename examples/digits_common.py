"""What both digit examples share: the images, corrupted ones, and what is measured of predicted probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from equipoise.report.palette import BLACK, BLUE, GREY

Array = NDArray[np.float64]
# What is measured of one way to predict, on each of several splits of the images.
Scores = dict[str, list[float]]
METRICS = ("accuracy", "log loss", "calibration error", "AUC rotated", "AUC noisy")


def digits(seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Images of 8 x 8 pixels in [0, 1] and their digits: 1,200 to learn from, 597 to be tested on."""
    raw = load_digits()
    return tuple(train_test_split(raw.data / 16.0, raw.target, train_size=1200, random_state=seed, stratify=raw.target))


def shown(images: Array, seed: int = 0) -> dict[str, Array]:
    """Images as they are, turned by a right angle, and under heavy noise."""
    turned = np.stack([rotate(image.reshape(8, 8), 90, reshape=False, order=1) for image in images])
    noise = np.random.default_rng(seed).normal(size=images.shape)
    return {
        "usual": images,
        "rotated": turned.reshape(images.shape).clip(0.0, 1.0),
        "noisy": (images + 0.5 * noise).clip(0.0, 1.0),
    }


def log_loss(p: Array, y: Array) -> float:
    """Mean negative log probability of what was there."""
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def calibration_error(p: Array, y: Array, bins: int = 15) -> float:
    """Mean difference between confidence and accuracy, over bins of confidence."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    some = [which == b for b in range(bins) if (which == b).any()]
    return float(sum(abs(confidence[here].mean() - right[here].mean()) * here.mean() for here in some))


def detection(inside: Array, outside: Array) -> float:
    """How often the entropy of a prediction ranks a strange image above a usual one (area under the ROC curve)."""
    entropies = [-(p * np.log(np.maximum(p, 1e-12))).sum(axis=1) for p in (inside, outside)]
    labels = np.repeat([0, 1], [len(e) for e in entropies])
    return float(roc_auc_score(labels, np.concatenate(entropies)))


def keep(found: dict[str, Scores], name: str, p: dict[str, Array], y: Array) -> None:
    """Add what one way to predict, with probabilities for each kind of images, is worth on this split."""
    usual = p["usual"]
    values = (
        float((usual.argmax(axis=1) == y).mean()),
        log_loss(usual, y),
        calibration_error(usual, y),
        detection(usual, p["rotated"]),
        detection(usual, p["noisy"]),
    )
    for metric, value in zip(METRICS, values, strict=True):
        found.setdefault(name, {m: [] for m in METRICS})[metric].append(value)


def averaged(values: list[float]) -> tuple[float, float]:
    """Mean over splits, and its standard error where there are several."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def table(found: dict[str, Scores], against: str | None = None) -> str:
    """One line for each way to predict; `against` one of them, differences on the same splits."""
    lines = [f"{'':<22}" + "".join(f"{metric:>19}" for metric in METRICS)]
    for name, scores in found.items():
        if name == against:
            continue
        cells = []
        for metric in METRICS:
            base = [0.0] * len(scores[metric]) if against is None else found[against][metric]
            mean, error = averaged([a - b for a, b in zip(scores[metric], base, strict=True)])
            sign = "" if against is None else "+"
            cells.append(f"{mean:{sign}.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}"))
        lines.append(f"{name:<22}" + "".join(f"{cell:>19}" for cell in cells))
    return "\n".join(lines)


def draw(found: dict[str, Scores], path: str) -> None:
    """Every metric in a panel, every way to predict in a line: the splits as dots, their mean with its standard error."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(METRICS) - 1, figsize=(11.0, 0.38 * len(found) + 1.3), sharey=True, layout="constrained"
    )
    for axis, metric in zip(axes, METRICS[1:], strict=True):
        for place, scores in enumerate(found.values()):
            values = scores[metric]
            mean, error = averaged(values)
            axis.plot(values, [place] * len(values), ".", color=GREY, markersize=4)
            axis.errorbar(mean, place, xerr=np.nan_to_num(error), fmt="o", color=BLUE, markersize=5, capsize=3)
        axis.axvline(averaged(next(iter(found.values()))[metric])[0], color=BLACK, linewidth=0.8, linestyle="--")
        better = "higher is better" if metric.startswith("AUC") else "lower is better"
        axis.set_title(f"{metric}\n({better})", fontsize=10)
    axes[0].set_yticks(range(len(found)), list(found))
    axes[0].invert_yaxis()
    figure.savefig(path)
