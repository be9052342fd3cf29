"""How the page looks: light and dark by the reader's choice, and on paper."""

from __future__ import annotations

from typing import Final

_LIGHT: Final = """
  --page: #f6f7f8; --card: #ffffff; --ink: #1b2226; --dim: #5d6a72; --line: #dde2e5; --accent: #0b6e72;
  --good: #63aa9f; --lost: #c4213a; --damaged: #e2761b; --damaged-2: #f6c391; --hole: #5b6670; --hole-2: #d4dade;
  --zero: #e7c34a; --stale: #8a6bbf; --stale-2: #cdbde8; --blank: #c9d3d6; --track: #eceff0;
  --keep: #2f7f77; --cut: #c4213a; --cut-2: #f5ccd1; --warn: #a35408; --code: #eef1f2;
"""
_DARK: Final = """
  --page: #14191c; --card: #1c2327; --ink: #e6ebed; --dim: #9aa8b0; --line: #313b41; --accent: #5fc3bf;
  --good: #3f8a80; --lost: #ff5d73; --damaged: #f0923c; --damaged-2: #6f4620; --hole: #aab5bc; --hole-2: #3a454b;
  --zero: #d9b23b; --stale: #a98be0; --stale-2: #4a3d68; --blank: #4d595f; --track: #262f34;
  --keep: #55b3a8; --cut: #ff5d73; --cut-2: #5b2a33; --warn: #f0a860; --code: #262f34;
"""

STYLE: Final = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media print {{ :root {{ color-scheme: light; {_LIGHT} --page: #fff; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }}
main {{ max-width: 1120px; margin: 0 auto; padding: 32px 24px 48px; }}
h1 {{ font-size: 27px; line-height: 1.25; margin: 4px 0 10px; letter-spacing: -.01em; text-wrap: balance; }}
h2 {{ font-size: 18px; margin: 0 0 4px; }}
h3 {{ font-size: 14px; margin: 18px 0 4px; }}
p {{ margin: 4px 0 10px; max-width: 82ch; }}
.kicker {{ color: var(--accent); font-weight: 600; font-size: 13px; letter-spacing: .06em; text-transform: uppercase; margin: 0; }}
.where {{ color: var(--dim); margin: 0 0 20px; max-width: none; overflow-wrap: anywhere; }}
.dim, .more {{ color: var(--dim); }}
.more {{ font-size: 13px; margin-top: 6px; }}
.time {{ white-space: nowrap; }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px; margin: 0 0 16px; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 16px; margin: 0 0 16px; }}
.card {{ background: var(--card); border: 1px solid var(--line); border-top: 4px solid var(--accent); border-radius: 10px;
  padding: 14px 18px 16px; }}
.card.bad {{ border-top-color: var(--lost); }}
.card.good {{ border-top-color: var(--keep); }}
.card h2 {{ font-size: 13px; font-weight: 600; color: var(--dim); }}
.card .figure {{ font-size: 32px; font-weight: 650; line-height: 1.2; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }}
.card .figure small {{ display: inline-block; font-size: 15px; font-weight: 500; letter-spacing: 0; color: var(--dim); }}
.card ul {{ margin: 8px 0 0; padding: 0; list-style: none; font-size: 14px; }}
.card li {{ padding: 2px 0; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; margin-top: 8px; }}
th {{ text-align: left; font-weight: 600; color: var(--dim); font-size: 12.5px; border-bottom: 1px solid var(--line);
  padding: 6px 12px 6px 0; vertical-align: bottom; }}
td {{ border-bottom: 1px solid var(--line); padding: 7px 12px 7px 0; vertical-align: top; overflow-wrap: break-word; }}
td:last-child, th:last-child {{ padding-right: 0; }}
tbody tr:last-child td {{ border-bottom: 0; }}
th.number, td.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 20px; }}
td.code, code, .name {{ font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 12.5px; }}
td.flag {{ min-width: 9em; }}
.warn {{ color: var(--warn); }}
pre {{ background: var(--code); border-radius: 6px; padding: 9px 12px; margin: 4px 0 10px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
ol {{ padding-left: 22px; margin: 8px 0 0; }}
ol li {{ margin-bottom: 8px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 5px 20px; margin: 8px 0 0; font-size: 14px; }}
dt {{ color: var(--dim); }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
.defs {{ position: absolute; }}
.bar {{ display: block; background: linear-gradient(var(--track), var(--track)) 0 0 / 100% 16px no-repeat; border-radius: 3px;
  overflow: hidden; }}
.overview .bar {{ background-size: 100% 32px; }}
.ends {{ display: flex; justify-content: space-between; gap: 12px; color: var(--dim); font-size: 12.5px; margin: 10px 0 4px;
  font-variant-numeric: tabular-nums; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; padding: 0; margin: 12px 0 14px; font-size: 13px;
  color: var(--dim); }}
.legend svg {{ margin-right: 6px; vertical-align: -1px; border-radius: 2px; }}
.strips {{ border-top: 1px solid var(--line); padding-top: 8px; }}
.strip {{ display: grid; grid-template-columns: 172px 1fr 230px; gap: 16px; align-items: start; padding: 4px 0; }}
.strip .told {{ font-size: 13px; color: var(--dim); line-height: 1.3; }}
.strip .name {{ line-height: 1.3; }}
.several .name {{ font-family: inherit; color: var(--dim); }}
.zeros {{ opacity: .38; }}
rect.good {{ fill: var(--good); }} rect.blank {{ fill: var(--blank); }} rect.unused {{ fill: var(--track); stroke: var(--blank); }}
rect.lost {{ fill: var(--lost); stroke: var(--lost); stroke-width: 2px; }}
rect.damaged {{ fill: url(#p-damaged); stroke: var(--damaged); stroke-width: 1.5px; }}
rect.hole {{ fill: url(#p-hole); stroke: var(--hole); stroke-width: 1px; }}
rect.zero {{ fill: var(--zero); stroke: var(--zero); stroke-width: 1.5px; }}
rect.stale {{ fill: url(#p-stale); stroke: var(--stale); stroke-width: 1px; }}
rect.keep {{ fill: var(--keep); }} rect.cut {{ fill: url(#p-cut); }}
.p-damaged-ground {{ fill: var(--damaged-2); }} .p-damaged-line {{ fill: var(--damaged); }}
.p-hole-ground {{ fill: var(--hole-2); }} .p-hole-line {{ fill: var(--hole); }}
.p-stale-ground {{ fill: var(--stale-2); }} .p-stale-line {{ fill: var(--stale); }}
.p-cut-ground {{ fill: var(--cut-2); }} .p-cut-line {{ fill: var(--cut); }}
footer {{ color: var(--dim); font-size: 13px; }}
@media (max-width: 760px) {{
  main {{ padding: 20px 14px 32px; }}
  h1 {{ font-size: 22px; }}
  section {{ padding: 14px; }}
  .strip {{ grid-template-columns: 1fr; gap: 2px; padding: 7px 0; }}
  dl {{ grid-template-columns: 1fr; gap: 0; }}
  dd {{ margin-bottom: 8px; }}
  table, tbody {{ display: block; }}
  thead {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
  tr {{ display: block; border-bottom: 1px solid var(--line); padding: 8px 0; }}
  tbody tr:last-child {{ border-bottom: 0; }}
  td, td.number {{ display: grid; grid-template-columns: 38% 1fr; gap: 10px; border: 0; padding: 2px 0; text-align: left;
    white-space: normal; }}
  td::before {{ content: attr(data-label); color: var(--dim); font: 13px/1.6 system-ui, sans-serif; }}
}}
@media print {{
  body {{ font-size: 11pt; }}
  main {{ padding: 0; max-width: none; }}
  section, .card {{ border-radius: 0; padding: 8pt 10pt; }}
  .card, tr, .strip, pre, li {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
  .card, section, .bar, pre {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""
