"""What both digit examples share: the images, corrupted ones, and what is measured of predicted probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

Array = NDArray[np.float64]


def digits() -> tuple[Array, Array, Array, Array]:
    """Images of 8 x 8 pixels in [0, 1] and their digits: 1,200 to learn from, 597 to be tested on."""
    raw = load_digits()
    return tuple(train_test_split(raw.data / 16.0, raw.target, train_size=1200, random_state=0, stratify=raw.target))


def strange(images: Array, seed: int = 0) -> dict[str, Array]:
    """The same images turned by a right angle, and under heavy noise."""
    turned = np.stack([rotate(image.reshape(8, 8), 90, reshape=False, order=1) for image in images])
    noise = np.random.default_rng(seed).normal(size=images.shape)
    return {"rotated": turned.reshape(images.shape).clip(0.0, 1.0), "noisy": (images + 0.5 * noise).clip(0.0, 1.0)}


def log_loss(p: Array, y: Array) -> float:
    """Mean negative log probability of what was there."""
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def calibration_error(p: Array, y: Array, bins: int = 15) -> float:
    """Mean difference between confidence and accuracy, over bins of confidence."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    shares = [(which == b).mean() for b in range(bins)]
    gaps = [
        abs(confidence[which == b].mean() - right[which == b].mean()) if (which == b).any() else 0 for b in range(bins)
    ]
    return float(np.dot(shares, gaps))


def detection(inside: Array, outside: Array) -> float:
    """How often the entropy of a prediction ranks a strange image above a usual one (area under the ROC curve)."""
    entropies = [-(p * np.log(np.maximum(p, 1e-12))).sum(axis=1) for p in (inside, outside)]
    labels = np.repeat([0, 1], [len(e) for e in entropies])
    return float(roc_auc_score(labels, np.concatenate(entropies)))


def table(found: dict[str, dict[str, Array]], y: Array) -> str:
    """One line for each way to predict: probabilities of usual images under `usual`, of strange ones under their kind."""
    kinds = [kind for kind in next(iter(found.values())) if kind != "usual"]
    lines = [
        f"{'':<12} {'accuracy':>9} {'log loss':>9} {'cal. error':>11}" + "".join(f"{k + ' AUC':>13}" for k in kinds)
    ]
    for name, p in found.items():
        usual = p["usual"]
        lines.append(
            f"{name:<12} {(usual.argmax(1) == y).mean():9.3f} {log_loss(usual, y):9.4f} {calibration_error(usual, y):11.4f}"
            + "".join(f"{detection(usual, p[kind]):13.3f}" for kind in kinds)
        )
    return "\n".join(lines)
