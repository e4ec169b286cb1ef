"""The scaffolding of our pages: style, document, tables; readable without a network, on paper and on a phone."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from equipoise.report.palette import stylesheet

__all__ = ["described", "document", "figures", "head", "minus", "table", "tiles"]

_LONG = 24  # rows of a table that are shown at once
# nothing is loaded and nothing is run; styles are part of the page and of its pictures
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_STYLE = """
*{box-sizing:border-box} :root{--panel:table} html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;font-size:16px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:clamp(1.5rem,4.5vw,2.1rem);line-height:1.2;letter-spacing:-.015em;margin:0 0 .35rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;letter-spacing:-.01em;margin:0 0 .3rem} h3{font-size:1.08rem;margin:0 0 .3rem}
p{margin:.3rem 0 .9rem;max-width:48rem}
.lead,.note,figcaption,dt,nav{color:var(--muted)} .note{font-size:.9rem;margin:.6rem 0 0}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:1.1rem 0 0;font-size:.92rem} nav .status{margin-left:auto}
a{color:var(--observed);text-decoration:none} a:hover{text-decoration:underline}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--observed);outline-offset:2px}
.skip{position:absolute;left:-99rem} .skip:focus{left:1rem;top:1rem;background:var(--card);padding:.4rem .8rem;z-index:2}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1.3rem 1.4rem;margin-top:1.2rem}
section>p:last-child{margin-bottom:0} ul{margin:.4rem 0 .8rem;padding-left:1.2rem} li{margin:.2rem 0;max-width:48rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;margin-top:1.2rem}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:.8rem 1rem}
.tile b{display:block;font-size:1.35rem;line-height:1.25;font-weight:620;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:.86rem;line-height:1.35;display:block}
.scroll{overflow-x:auto;margin:.6rem 0 0}
table{border-collapse:collapse;width:100%;font-size:.93rem;font-variant-numeric:tabular-nums} .slim{max-width:44rem}
th,td{padding:.42rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
thead th{color:var(--muted);font-weight:560;font-size:.85rem;vertical-align:bottom;white-space:normal}
tbody tr:last-child>*{border-bottom:0} th:first-child,td:first-child,.words,.told th:last-child{text-align:left}
tbody th{font-weight:500;white-space:normal;overflow-wrap:anywhere;min-width:8.5rem}
.words{white-space:normal;min-width:15rem} .tall{max-height:38rem;overflow-y:auto}
.tall thead th{position:sticky;top:0;background:var(--card);box-shadow:0 1px var(--line)}
caption{caption-side:bottom;text-align:left;color:var(--muted);font-size:.86rem;padding:.35rem 0 0}
.pill{display:inline-block;border-radius:99px;padding:0 .6em;font-size:.82rem;font-weight:600;border:1px solid}
.pill.ok,.status,a.status{color:var(--good)} .pill.look,.status.look,a.status.look{color:var(--alert)}
.pill.unknown,.status.unknown,a.status.unknown{color:var(--muted)} .status{font-weight:560}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1.1rem 1.6rem;margin-top:.7rem}
figure{margin:0;min-width:0} figcaption{font-size:.9rem;overflow-wrap:anywhere} figcaption b{color:var(--ink)}
svg{display:block;width:100%;max-width:560px;height:auto} svg *{stroke-linejoin:round;stroke-linecap:butt}
dl{display:grid;grid-template-columns:minmax(9rem,14rem) 1fr;gap:.3rem 1rem;margin:.6rem 0 0;font-size:.95rem}
dl+p{margin-top:1rem} dd{margin:0;overflow-wrap:anywhere} footer{color:var(--muted);font-size:.86rem;margin-top:1.6rem}
"""

# The forest of intervals, its buttons, and what is folded.
_EFFECTS = """
.quiet,.pick{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
#effects{position:relative} .picks{display:flex;flex-wrap:wrap;gap:.4rem;margin:.2rem 0 .9rem}
.picks label{border:1px solid var(--line);border-radius:99px;padding:.25rem .85rem;font-size:.9rem;cursor:pointer;
color:var(--muted)} .picks label:hover{border-color:var(--observed)} .picks .tick::before{content:"☐ "}
table.forest{display:none;table-layout:fixed} .forest th,.forest td{border:0;padding:0 .6rem;vertical-align:middle}
.forest tbody tr:nth-child(odd)>*{background:var(--stripe)} .forest thead th{padding-bottom:.4rem}
.forest th:first-child{width:25%} .forest .read{width:29%;text-align:right} .forest .drawn{padding:0}
.forest .ends{color:var(--muted);font-size:.88rem;display:inline-block;min-width:9.2rem} .forest tbody b{font-weight:620}
.strip{display:block;width:100%;max-width:none;height:31px;overflow:visible} .strip line{stroke:var(--muted);stroke-width:2.6}
.strip.clear line{stroke:var(--observed)} .strip circle{fill:var(--muted)} .strip.clear circle{fill:var(--observed)}
.strip .grid,.strip.clear .grid{stroke:var(--line);stroke-width:1} .strip.axis{height:20px}
.strip .none,.strip.clear .none{stroke:var(--muted);stroke-width:1.3;stroke-dasharray:4 3}
.axis text{fill:var(--muted);font-size:12px;text-anchor:middle;font-variant-numeric:tabular-nums}
details>summary{cursor:pointer} #sampler>details>summary{display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline}
#sampler>details>summary::before{content:"▸";color:var(--muted)} #sampler>details[open]>summary::before{content:"▾"}
#sampler summary h2{margin:0} #sampler section{background:none;padding:1.1rem 0 0;border:0;border-radius:0}
#sampler .verdict{border-left:6px solid var(--third);padding:.2rem 0 .2rem 1rem;margin-top:1.1rem}
.verdict strong{font-size:1.15rem} #sampler .verdict.look{border-left-color:var(--predicted)}
#sampler .verdict.unknown{border-left-color:var(--muted)}
"""

# On a phone rows become blocks: names and numbers above, lines across; no interval needs scrolling.
_NARROW = """
@media (max-width:640px){:root{--panel:block} main{padding:1.4rem .8rem 3rem} section{padding:1rem .9rem}
dl{grid-template-columns:1fr;gap:0} dd{margin-bottom:.5rem} nav .status{margin-left:0;width:100%}
.tiles{grid-template-columns:1fr 1fr;gap:.6rem} .tile:last-child:nth-child(odd){grid-column:1/-1} th,td{padding:.42rem .4rem}
.forest tbody,.forest tfoot,.coefficients,.coefficients tbody{display:block} .forest caption{display:block}
.forest thead,.coefficients thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.forest tr{display:grid;grid-template-columns:minmax(0,1fr) auto;align-items:baseline;padding:.3rem 0}
.forest tbody tr:nth-child(odd){background:var(--stripe)} .forest tbody tr:nth-child(odd)>*{background:none}
.forest th:first-child,.forest .read{width:auto;min-width:0;padding:0 .5rem}
.forest .drawn{grid-column:1/-1;grid-row:2;margin:0 .7rem}
.forest .ends{min-width:0} .forest tfoot td:not(.drawn){display:none} .strip{height:24px}
.coefficients tr{display:grid;grid-template-columns:repeat(4,1fr);gap:.2rem .4rem;padding:.55rem 0}
.coefficients tbody tr{border-bottom:1px solid var(--line)} .coefficients tbody tr:last-child{border:0}
.coefficients th,.coefficients td{border:0;padding:0;text-align:left;min-width:0;white-space:normal}
.coefficients th{grid-column:1/-1;font-weight:620} .coefficients .ends{grid-column:span 2}
.coefficients td::before{content:attr(data-label);display:block;color:var(--muted);font-size:.76rem;line-height:1.25;
overflow-wrap:anywhere} .coefficients.tall,.tall:has(.coefficients){max-height:none}
.told thead{display:none} .told tr{display:block;padding:.6rem 0;border-bottom:1px solid var(--line)}
.told th,.told td{display:inline-block;border:0;padding:0 .9rem 0 0;min-width:0} .told .words{display:block;padding-top:.3rem}
.told [data-label]{display:block;text-align:left;color:var(--muted)} .told [data-label]::before{content:attr(data-label) ": "}}
@media print{body{font-size:10pt;background:#fff} main{max-width:none;padding:0} nav,.picks,.skip{display:none}
section,.tile{border-radius:0;break-inside:avoid} #coefficients,#draws,#mixing,#sampler{break-inside:auto}
figure,tr{break-inside:avoid} h2,h3{break-after:avoid} details::details-content{content-visibility:visible;height:auto}
.scroll{overflow:visible;max-height:none} .plots{grid-template-columns:1fr 1fr}}
"""


def _chosen() -> str:
    """The forest of the chosen scale is shown and its button marked: selectors instead of a script."""
    rules = []
    for scale in ("unit", "sd", "se"):
        on, button = f"#scale-{scale}:checked", f".picks label[for=scale-{scale}]"
        rules += [
            f"{on}~#forest-{scale}{{display:var(--panel)}}",
            f"{on}~{button}{{background:var(--observed);border-color:var(--observed);color:var(--card)}}",
            f"#scale-{scale}:focus-visible~{button}{{outline:3px solid var(--ink);outline-offset:2px}}",
        ]
    for scale in ("unit", "sd"):
        on = f"#scale-{scale}:checked~#exponentiate:checked"
        rules += [f"{on}~#forest-{scale}{{display:none}}", f"{on}~#forest-{scale}-exp{{display:var(--panel)}}"]
    rules += [
        "#scale-se:checked~.picks .tick{visibility:hidden}",
        "#exponentiate:checked~.picks .tick{color:var(--ink);border-color:var(--observed)}",
        '#exponentiate:checked~.picks .tick::before{content:"☑ "}',
        "#exponentiate:focus-visible~.picks .tick{outline:3px solid var(--ink);outline-offset:2px}",
    ]
    return "".join(rules)


def document(title: str, lead: str, links: str, body: str) -> str:
    """A page that loads nothing; `links` and `body` are markup already."""
    from equipoise import __version__

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{stylesheet()}{_STYLE}{_EFFECTS}{_NARROW}{_chosen()}</style></head>\n<body>"
        '<a class="skip" href="#main">To the content</a><main id="main">'
        f'<header><h1>{escape(title)}</h1><div class="lead">{escape(lead)}</div><nav>{links}</nav></header>\n'
        f"{body}\n<footer>Made by Equipoise {__version__}. This page is complete in itself and loads nothing.</footer>"
        "</main></body></html>\n"
    )


def table(heads: list[str], rows: list[list[str]], kind: str, label: str) -> str:
    """A table of cells that are markup already; a wide or long one scrolls in its own box, also by keyboard.

    Roles are written out: a narrow screen lays rows out as blocks, which would take the table's meaning away.
    """
    head = "".join(f'<th scope="col" role="columnheader">{escape(h)}</th>' for h in heads)
    body = "\n".join(f'<tr role="row">{"".join(row)}</tr>' for row in rows)
    box = "scroll tall" if len(rows) > _LONG else "scroll"
    return (
        f'<div class="{box}" role="region" tabindex="0" aria-label="{escape(label)}"><table class="{kind}" role="table">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>'
    )


def figures(*pairs: tuple[str, str]) -> str:
    """Figures side by side; each is a caption (markup) and an SVG, left out when empty."""
    shown = "".join(f"<figure><figcaption>{caption}</figcaption>{svg}</figure>" for caption, svg in pairs if svg)
    return f'<div class="plots">{shown}</div>'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Numbers that stand out, each with what it is."""
    inner = "".join(f'<div class="tile"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in pairs)
    return f'<div class="tiles">{inner}</div>'


def described(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and what they stand for."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs) + "</dl>"


def minus(number: str) -> str:
    """A number with a true minus sign."""
    return f"−{number[1:]}" if number.startswith("-") and len(number) > 1 else number


def head(text: str) -> str:
    """A row's heading."""
    return f'<th scope="row" role="rowheader">{escape(text)}</th>'
