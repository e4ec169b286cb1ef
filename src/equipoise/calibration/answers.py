"""What people ask of a run once it is there: tables, intervals, tests, other covariances.

Each of these functions is a method of `Calibration`, which takes them over as they are. All are closed forms, of the
estimate, a covariance of it (the target, unless another is asked for), and a normal or Student law; but for intervals
where the draws carry shape that no closed form has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, fdtrc, ndtr, stdtr

from equipoise.arrays import Array
from equipoise.calibration.ends import critical, ends_words, method_of
from equipoise.calibration.hypotheses import Restrictions, restrictions
from equipoise.cards import Card, html_table
from equipoise.checks import checked_options, flag, nearest, one_of, probability
from equipoise.errors import InvalidInput
from equipoise.linalg import symmetric
from equipoise.models.covariance import Covariance
from equipoise.models.robust import CLUSTERED, KINDS, PLAIN, covariance, from_moments
from equipoise.theory.targets import TARGETS

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.calibration.calibration import Calibration

__all__ = [
    "CovarianceOptions",
    "TableOptions",
    "WaldTest",
    "combine",
    "confint",
    "covariance_of",
    "exponentiated",
    "table_of",
    "tidy",
    "vcov",
    "wald",
]


class CovarianceOptions(TypedDict, total=False):
    """What `vcov` takes beside a kind."""

    clusters: object
    time: object
    lags: int | None
    small_sample: bool | str


class TableOptions(CovarianceOptions, total=False):
    """What `tidy` takes beside a level."""

    kind: str | None
    method: str
    exponentiate: bool


_OPTIONS = {"clusters": None, "time": None, "lags": None, "small_sample": True}  # of `vcov`, with their defaults
_DEPENDENT = 1e-10  # relative size below which a restriction adds nothing to the others


@dataclass(frozen=True, repr=False)
class WaldTest(Card):
    """A test of linear hypotheses.

    Attributes
    ----------
    statistic
        χ², or F.
    df
        Degrees of freedom: the number of restrictions.
    df_denominator
        Those of the denominator of F; None for χ².
    p_value
        The probability of a larger statistic, were the hypotheses true.
    words
        The hypotheses.
    covariance
        What the covariance of the estimate is called.
    """

    statistic: float
    df: int
    df_denominator: float | None
    p_value: float
    words: tuple[str, ...]
    covariance: str

    def __str__(self) -> str:
        law = f"chi2({self.df})" if self.df_denominator is None else f"F({self.df}, {self.df_denominator:g})"
        return (
            f"{law} = {self.statistic:.4g}, p = {self.p_value:.4g}, of {', '.join(self.words)}; "
            f"covariance: {self.covariance}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        law = "chi2" if self.df_denominator is None else "F"
        df = f"{self.df}" if self.df_denominator is None else f"{self.df}, {self.df_denominator:g}"
        row = ["; ".join(self.words), f"{self.statistic:.4g}", df, f"{self.p_value:.4g}", self.covariance]
        return html_table(("hypotheses", law, "df", "p", "covariance"), [row], "Wald test")


def covariance_of(cal: Calibration, kind: str | None, **options: Unpack[CovarianceOptions]) -> Covariance:
    """A covariance of the run's estimate: the target, or any other, without another fit; options are those of `vcov`.

    One that needs the rows is refused for a run that was loaded or sent without them.
    """
    for name in options:
        if name not in _OPTIONS:
            remedy = nearest(name, _OPTIONS) or f"choose from {', '.join(_OPTIONS)}"
            raise InvalidInput(name, "an option of vcov", "no such option", remedy)
    given = {name: value for name, value in options.items() if value is not _OPTIONS[name]}
    target = cal.plan.target
    if kind in (None, target.kind) and not given:
        return target
    if kind is None:
        kind = target.kind if target.kind in CLUSTERED else "CRV1"
    one_of("kind", kind, (*TARGETS, *KINDS))
    if kind in PLAIN and not given and cal.plan.problem is None:
        return from_moments(cal.plan.moments, kind, cal.title.name == "gaussian")
    return covariance(cal.require_problem(), cal.moments_of_all, kind, **cast(CovarianceOptions, given))


@checked_options
def vcov(
    self: Calibration,
    kind: str | None = None,
    clusters: object = None,
    *,
    time: object = None,
    lags: int | None = None,
    small_sample: bool | str = True,
) -> Array:
    """A covariance of the estimate, without another fit.

    Parameters
    ----------
    kind
        Any of `eq.robust`, or `"sandwich"`, `"posterior"`, `"bayesbag"`; None for the target of the run. With clusters
        alone, `"CRV1"`.
    clusters, time, lags, small_sample
        See `eq.robust`: names that the data were read with, or arrays.

    Returns
    -------
    (D, D) array
    """
    return covariance_of(self, kind, clusters=clusters, time=time, lags=lags, small_sample=small_sample).matrix


@checked_options
def tidy(
    self: Calibration,
    level: float = 0.95,
    kind: str | None = None,
    *,
    method: str = "auto",
    exponentiate: bool = False,
    **options: Unpack[CovarianceOptions],
) -> pd.DataFrame:
    """The coefficient table as a DataFrame, one row per parameter.

    Parameters
    ----------
    level
        Probability of the intervals.
    kind, **options
        Another covariance than the target: see `vcov`.
    method
        Intervals: `"closed"`, estimate ± z·se; `"draws"`, quantiles of the draws; or `"auto"`, the closed form unless the
        draws carry shape that it lacks (`diagnosis.carries_shape`). `attrs["intervals"]` of the table says which.
    exponentiate
        Show exp(estimate) and its interval, with a standard error by the delta method: rate ratios for a log link, odds
        ratios for a logit, hazard ratios for a complementary log-log. Statistic and p-value stay those of the estimate.

    Returns
    -------
    pandas.DataFrame
        term, estimate, std_error, statistic, p_value, conf_low, conf_high. The law is Student's with clusters less one
        degrees of freedom for clustered covariances and, for squared loss, with N − D for HC1 to HC3 and the posterior; it is
        normal otherwise.
    """
    every, cov = np.eye(len(self.names)), covariance_of(self, kind, **options)
    by = method_of(self, method, cov)
    made = table_of(self.names, self.fit.theta, every, cov, level, self.chains.flat() if by == "draws" else None)
    return exponentiated(made) if flag("exponentiate", exponentiate) else made


def exponentiated(table: pd.DataFrame) -> pd.DataFrame:
    """The same table of exp(estimate): ends follow, standard errors by the delta method, tests stay."""
    ratio = np.exp(table["estimate"])
    made = table.assign(
        estimate=ratio, std_error=ratio * table["std_error"], conf_low=np.exp(table["conf_low"]),
        conf_high=np.exp(table["conf_high"]),
    )  # fmt: skip
    made.attrs.update(table.attrs)
    return made


@checked_options
def combine(
    self: Calibration,
    expressions: str | Sequence[str] | ArrayLike,
    level: float = 0.95,
    kind: str | None = None,
    *,
    method: str = "auto",
    exponentiate: bool = False,
    **options: Unpack[CovarianceOptions],
) -> pd.DataFrame:
    """Linear combinations of parameters with their intervals.

    Parameters
    ----------
    expressions
        Such as `"a + 2*b, a - b"`, in the words of `test`, or a matrix of as many columns as parameters.
    level, kind, method, exponentiate, **options
        As for `tidy`.

    Returns
    -------
    pandas.DataFrame
        Like that of `tidy`, one row per combination.
    """
    rows = restrictions(expressions, self.names, "expressions")
    estimate = rows.matrix @ self.fit.theta - rows.value
    cov = covariance_of(self, kind, **options)
    drawn = self.chains.flat() @ rows.matrix.T - rows.value if method_of(self, method, cov) == "draws" else None
    made = table_of(rows.words, estimate, rows.matrix, cov, level, drawn)
    return exponentiated(made) if flag("exponentiate", exponentiate) else made


def table_of(
    terms: Sequence[str],
    estimate: Array,
    gradients: Array,
    cov: Covariance,
    level: float,
    drawn: Array | None = None,
) -> pd.DataFrame:
    """Estimates with errors, tests against zero and intervals of a level.

    `gradients`, (rows, D), are derivatives by the parameters, whose covariance is `cov`; `drawn`, (draws, rows), is what
    to take the intervals from in place of the closed form.
    """
    import pandas as pd  # slow to import: only those who ask for a table pay for it

    error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", gradients, cov.matrix, gradients), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = estimate / error
    tail = ndtr(-np.abs(statistic)) if cov.df is None else stdtr(cov.df, -np.abs(statistic))
    beyond = 0.5 * (1.0 - probability("level", level))
    reach = critical(level, cov.df) * error
    ends = (estimate - reach, estimate + reach)
    if drawn is not None:
        ends = tuple(np.quantile(drawn, [beyond, 1.0 - beyond], axis=0))
    made = pd.DataFrame(
        {
            "term": list(terms),
            "estimate": estimate,
            "std_error": error,
            "statistic": statistic,
            "p_value": 2.0 * tail,
            "conf_low": ends[0],
            "conf_high": ends[1],
        }
    )
    made.attrs["intervals"] = ends_words("closed" if drawn is None else "draws", level, cov.df)
    return made


@checked_options
def confint(
    self: Calibration,
    level: float = 0.95,
    kind: str | None = None,
    *,
    method: str = "auto",
    exponentiate: bool = False,
    **options: Unpack[CovarianceOptions],
) -> pd.DataFrame:
    """Intervals of every parameter; columns lower and upper.

    Parameters
    ----------
    level, kind, method, exponentiate, **options
        As for `tidy`.
    """
    made = tidy(self, level, kind, method=method, exponentiate=exponentiate, **options)
    ends = made.set_index("term")[["conf_low", "conf_high"]].set_axis(["lower", "upper"], axis=1).rename_axis(None)
    ends.attrs.update(made.attrs)
    return ends


@checked_options
def wald(
    self: Calibration,
    hypothesis: str | Sequence[str] | ArrayLike | tuple[ArrayLike, ArrayLike],
    use_f: bool = False,
    kind: str | None = None,
    **options: Unpack[CovarianceOptions],
) -> WaldTest:
    """Wald's test of linear hypotheses, one or several together.

    Parameters
    ----------
    hypothesis
        In words, such as `"distance = 0, C(zone)[T.2] = C(zone)[T.3]"`; or a matrix R for R θ = 0, or a pair (R, r).
    use_f
        F in place of χ²: with clusters less one degrees of freedom in the denominator for clustered covariances, else
        N − D.
    kind, **options
        Another covariance than the target: see `vcov`.

    Returns
    -------
    WaldTest
        statistic, df, p_value.

    Raises
    ------
    InvalidInput
        If hypotheses repeat each other, or are more than the covariance has variance for.
    """
    rows, cov = restrictions(hypothesis, self.names), covariance_of(self, kind, **options)
    q = len(rows.matrix)
    away = rows.matrix @ self.fit.theta - rows.value
    spread = symmetric(rows.matrix @ cov.matrix @ rows.matrix.T)
    _require_testable(rows, spread, cov)
    square = float(away @ np.linalg.solve(spread, away))
    if not flag("use_f", use_f):
        return WaldTest(square, q, None, float(chdtrc(q, square)), rows.words, cov.words)
    left = float(self.plan.moments.n - len(self.names)) if cov.df is None else cov.df
    return WaldTest(square / q, q, left, float(fdtrc(q, left, square / q)), rows.words, cov.words)


def _require_testable(rows: Restrictions, spread: Array, cov: Covariance) -> None:
    q, rank = len(rows.matrix), int(np.linalg.matrix_rank(rows.matrix))
    if rank < q:
        raise InvalidInput(
            "hypothesis", "made of restrictions that do not repeat each other", f"{q}, of which {rank} count",
            "leave the others out",
        )  # fmt: skip
    scale = np.sqrt(np.diag(spread))
    if scale.min() <= 0.0 or np.linalg.eigvalsh(spread / np.outer(scale, scale))[0] < _DEPENDENT:
        raise InvalidInput(
            "hypothesis", f"of fewer restrictions than {cov.words} has variance for ({cov.rank})",
            f"{q} restrictions", "test fewer together, or use another covariance (kind=...)",
        )  # fmt: skip
