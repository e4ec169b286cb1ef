"""The scaffolding of our pages: style, document, tables; readable without a network, on paper and on a phone."""

from __future__ import annotations

from html import escape

from equipoise.report.palette import stylesheet

__all__ = ["document", "head", "table"]

_LONG = 24  # rows of a table that are shown at once

_STYLE = """
*{box-sizing:border-box} html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;font-size:16px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:clamp(1.5rem,4.5vw,2.1rem);line-height:1.2;letter-spacing:-.015em;margin:0 0 .35rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;letter-spacing:-.01em;margin:0 0 .3rem} p{margin:.3rem 0 .9rem;max-width:48rem}
.lead,.note,figcaption,dt,nav{color:var(--muted)} .note{font-size:.9rem;margin:.6rem 0 0}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:1.1rem 0 0;font-size:.92rem}
a{color:var(--observed);text-decoration:none} a:hover{text-decoration:underline}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1.3rem 1.4rem;margin-top:1.2rem}
section>p:last-child{margin-bottom:0} ul{margin:.4rem 0 .8rem;padding-left:1.2rem} li{margin:.2rem 0;max-width:48rem}
.verdict{border-left:6px solid var(--third)} .look{border-left-color:var(--predicted)} .verdict strong{font-size:1.15rem}
.verdict.unknown{border-left-color:var(--muted)}
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
.pill{display:inline-block;border-radius:99px;padding:0 .6em;font-size:.82rem;font-weight:600;border:1px solid}
.pill.ok{color:var(--third)} .pill.look{color:var(--predicted)} .pill.unknown{color:var(--muted)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1.1rem 1.6rem;margin-top:.7rem}
figure{margin:0;min-width:0} figcaption{font-size:.9rem;overflow-wrap:anywhere} figcaption b{color:var(--ink)}
svg{display:block;width:100%;max-width:560px;height:auto} svg *{stroke-linejoin:round;stroke-linecap:butt}
dl{display:grid;grid-template-columns:minmax(9rem,14rem) 1fr;gap:.3rem 1rem;margin:.6rem 0 0;font-size:.95rem}
dd{margin:0;overflow-wrap:anywhere} footer{color:var(--muted);font-size:.86rem;margin-top:1.6rem}
@media (max-width:640px){main{padding:1.4rem .8rem 3rem} section{padding:1rem .9rem} dl{grid-template-columns:1fr;gap:0}
dd{margin-bottom:.5rem} .tiles{grid-template-columns:1fr 1fr;gap:.6rem}
.tile:last-child:nth-child(odd){grid-column:1/-1} th,td{padding:.42rem .4rem}
.told thead{display:none} .told tr{display:block;padding:.6rem 0;border-bottom:1px solid var(--line)}
.told th,.told td{display:inline-block;border:0;padding:0 .9rem 0 0;min-width:0} .told .words{display:block;padding-top:.3rem}
.told [data-label]{display:block;text-align:left;color:var(--muted)} .told [data-label]::before{content:attr(data-label) ": "}}
@media print{body{font-size:10pt;background:#fff} main{max-width:none;padding:0} nav{display:none}
section,.tile{border-radius:0;break-inside:avoid} #coefficients,#draws,#mixing{break-inside:auto} figure,tr{break-inside:avoid}
h2{break-after:avoid} .scroll{overflow:visible;max-height:none} .plots{grid-template-columns:1fr 1fr}}
"""


def document(title: str, lead: str, links: str, body: str) -> str:
    """A page that loads nothing; `links` and `body` are markup already."""
    from equipoise import __version__

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{stylesheet()}{_STYLE}</style></head>\n<body><main>"
        f'<header><h1>{escape(title)}</h1><div class="lead">{escape(lead)}</div><nav>{links}</nav></header>\n'
        f"{body}\n<footer>Made by Equipoise {__version__}. This page is complete in itself and loads nothing.</footer>"
        "</main></body></html>\n"
    )


def table(heads: list[str], rows: list[list[str]], kind: str) -> str:
    """A table of cells that are markup already; a long one scrolls in its own box on a screen."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    box = "scroll tall" if len(rows) > _LONG else "scroll"
    return f'<div class="{box}"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def head(text: str) -> str:
    """A row's heading."""
    return f'<th scope="row">{escape(text)}</th>'
