"""Bridges to other libraries: thin, optional, imported only when used."""

from importlib import import_module
from types import ModuleType

__all__ = ()

# what to install for each
_BRIDGES = {
    "blackjax": "'equipoise[general]' blackjax",
    "numpyro": "'equipoise[general]' numpyro",
    "optax": "'equipoise[general]' optax",
    "sklearn": "'equipoise[sklearn]'",
    "torch": "'equipoise[torch]'",
}


def __getattr__(name: str) -> ModuleType:
    """The bridge of this name, by `from equipoise.interop import ...`; what it needs is told where that is not installed."""
    if name not in _BRIDGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"equipoise.interop.{name} needs {error.name}, which is not installed. To fix: run pip install {_BRIDGES[name]}.",
            name=error.name,
        ) from error
