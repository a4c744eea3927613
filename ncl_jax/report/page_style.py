"""The style of the web page: light and dark, from a phone to a wide screen."""

CSS = """
:root {
  --paper: #ffffff; --ink: #1c1e21; --soft: #5c6470; --line: #dfe3e8; --wash: #f5f7f9;
  --baseline: #c25400; --method: #0067a3; --control: #6b6b6b; --warn: #fff6df;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e8ea; --soft: #9aa4ae; --line: #2e343a; --wash: #1c2126;
    --baseline: #ff9d57; --method: #63b8f0; --control: #b0b0b0; --warn: #2b2616;
  }
  figure a { filter: brightness(.92); }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 62rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; }
a { color: var(--method); }
.lead { margin: 0 0 .75rem; font-size: 1.05rem; }
.claim {
  margin: 0; padding: .6rem .9rem; background: var(--warn); border-radius: .4rem;
}
.scroll { overflow-x: auto; }
table {
  border-collapse: collapse; width: 100%; font-size: .92rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; overflow-wrap: normal;
}
th, td { padding: .45rem .6rem; text-align: right; vertical-align: top; }
th { font-weight: 600; }
tbody tr:not(.group) { border-top: 1px solid var(--line); }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--line); }
thead th.baseline { color: var(--baseline); border-color: var(--baseline); }
thead th.method { color: var(--method); border-color: var(--method); }
thead th.control { color: var(--control); border-color: var(--control); }
th:first-child {
  text-align: left; position: sticky; left: 0; background: var(--paper);
}
tbody th[scope=row] { font-weight: 400; min-width: 8.5rem; max-width: 20rem; }
tr.group th {
  padding-top: 1.3rem; color: var(--soft); font-size: .8rem; letter-spacing: .06em;
  text-transform: uppercase;
}
td small { display: block; color: var(--soft); font-size: .78rem; white-space: nowrap; }
td small.remark { white-space: normal; }
summary {
  cursor: pointer; list-style: none; text-decoration: underline dotted var(--soft);
  text-underline-offset: .2em;
}
summary::-webkit-details-marker { display: none; }
details p { margin: .3rem 0 0; color: var(--soft); font-size: .85rem; }
.legend, figcaption { color: var(--soft); font-size: .88rem; }
ul { padding-left: 1.2rem; }
li + li { margin-top: .35rem; }
figure { margin: 0; }
figure a {
  display: block; background: #fff; border: 1px solid var(--line);
  border-radius: .5rem; padding: .5rem;
}
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { margin-top: .6rem; }
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; margin: 0;
}
.glossary { margin-top: .8rem; font-size: .9rem; gap: .1rem 1rem; }
dt { color: var(--soft); }
dd { margin: 0; }
footer {
  margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--soft); font-size: .88rem;
}
:focus-visible { outline: 2px solid var(--method); outline-offset: 2px; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .9rem 2rem; }
  h1 { font-size: 1.4rem; }
  table { font-size: .82rem; }
  th, td { padding: .4rem .2rem; }
  thead th { font-size: .76rem; }
  tbody th[scope=row] { min-width: 5.5rem; max-width: 9rem; }
  td small { white-space: normal; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print { figure, tr { break-inside: avoid; } }
"""
