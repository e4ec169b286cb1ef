"""Bridges to libraries that are not installed say what to install."""

from __future__ import annotations

import pytest

from equipoise import interop


@pytest.mark.parametrize("name", ["blackjax", "numpyro", "optax", "sklearn", "torch"])
def test_what_is_not_installed_is_told(name, monkeypatch) -> None:
    def missing(bridge):
        assert bridge == f"equipoise.interop.{name}"
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.delitem(vars(interop), name, raising=False)
    monkeypatch.setattr(interop, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=rf"interop.{name} needs {name}, .*pip install '.*{name}"):
        getattr(interop, name)


def test_no_other_name_is_a_bridge() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'pymc'"):
        interop.pymc  # noqa: B018
