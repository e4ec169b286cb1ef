"""The colours of every page and figure: Okabe and Ito's, which stay apart for every common kind of colour vision."""

from __future__ import annotations

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "NAVY",
    "ORANGE",
    "PURPLE",
    "SILVER",
    "SKY",
    "THEME",
    "VERMILION",
    "stylesheet",
]

# For figures on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
NAVY, BLACK, GREY, SILVER = "#004c78", "#222222", "#666666", "#999999"

# For pages, which follow the reader's choice of light or dark: name → on light, on dark.
THEME = {
    "ink": ("#1f2430", "#e7e9ee"),
    "muted": ("#6b7280", "#9aa3b2"),
    "line": ("#d9dce3", "#363c4a"),
    "observed": (BLUE, SKY),
    "predicted": (VERMILION, "#f0894a"),
    "third": (GREEN, "#2fc79a"),
    "fourth": ("#b0608c", "#e3a1c6"),
}
# Grounds, and colours of words, which need more contrast than lines do.
_GROUND = {
    "good": ("#00744f", "#2fc79a"),
    "alert": ("#b04a00", "#f0894a"),
    "paper": ("#f6f7f9", "#14171d"),
    "card": ("#ffffff", "#1c2029"),
    "stripe": ("#f4f6f9", "#222733"),
}


def stylesheet() -> str:
    """The theme as CSS variables: light, dark where the reader prefers it, and always light on paper."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in {**_GROUND, **THEME}.items()) for side in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
