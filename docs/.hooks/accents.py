"""A hook of the site's: letters with a combining accent, which monospaced fonts put over the next letter."""

from __future__ import annotations

import re

_ACCENTED = re.compile("([^\\W_])([\u0300-\u036f])")


def on_page_content(html: str, **_: object) -> str:
    """The same page, with such letters in a span that the style sheet gives another font."""
    return _ACCENTED.sub(r'<span class="accented">\1\2</span>', html)
