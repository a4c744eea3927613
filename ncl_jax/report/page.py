"""The report as a self-contained web page and as Markdown."""

import html
import importlib.resources
import string
from collections.abc import Iterable

from ncl_jax.report import statistics, tables
from ncl_jax.report.comparison import Comparison
from ncl_jax.report.figures import drawing

EXPLORER = "explorer.html"
LOOK = "Look at single dimensions and images yourself"


def escape(string: str) -> str:
  """Text for an element or an attribute."""
  return html.escape(str(string))


def _cell(cell: tables.Cell) -> str:
  details = "".join(
    f'<small class="{name}">{escape(part)}</small>'
    for name, part in (("spread", cell.spread), ("remark", cell.remark))
    if part
  )
  return f"<td>{escape(cell.value)}{details}</td>"


def _label(row: tables.Row) -> str:
  if not row.metric.note:
    return escape(row.label)
  return (
    f"<details><summary>{escape(row.label)}</summary>"
    f"<p>{escape(row.metric.note)}</p></details>"
  )


def _table(comparison: Comparison) -> str:
  count = len(comparison.methods)
  roles = ["baseline", "method", *["control"] * (count - 2), "plain", "plain"]
  head = tables.columns(comparison)
  lines = ["<table>", '<thead><tr><th scope="col">metric</th>']
  lines += [
    f'<th scope="col" class="{role}">{escape(name)}</th>'
    for role, name in zip(roles, head, strict=False)
  ]
  lines.append("</tr></thead>")
  for group, body in tables.groups(comparison):
    lines.append(
      f'<tbody><tr class="group"><th scope="rowgroup" colspan="{len(head) + 1}">'
      f"{escape(group)}</th></tr>"
    )
    for row in body:
      cells = "".join(map(_cell, row.cells))
      lines.append(f'<tr><th scope="row">{_label(row)}</th>{cells}</tr>')
    lines.append("</tbody>")
  return "\n".join([*lines, "</table>"])


def _size(image: drawing.Image) -> str:
  """Pixels of the page: fewer than the file's, so that fine screens show it sharp."""
  width, height = (round(x * 100 / drawing.DPI) for x in image.size)
  return f'width="{width}" height="{height}"'


def _figure(picture: drawing.Picture) -> str:
  wide, narrow = picture.wide, picture.narrow
  return f"""<section>
<h2>{escape(picture.title)}</h2>
<figure>
<a href="{escape(wide.file)}"><picture>
<source media="(max-width: 40rem)" srcset="{escape(narrow.file)}" {_size(narrow)}>
<img src="{escape(wide.file)}" {_size(wide)} alt="{escape(picture.description)}">
</picture></a>
<figcaption>{escape(picture.caption)}</figcaption>
</figure>
</section>"""


def lead(comparison: Comparison) -> str:
  """What is compared, in one line."""
  controls = [method.label for method in comparison.methods[2:]]
  others = f"; for comparison: {', '.join(controls)}" if controls else ""
  seeds = ", ".join(str(seed) for seed in comparison.seeds)
  return (
    f"{comparison.method.label} against {comparison.baseline.label}{others}."
    f" Seed{'s' if len(comparison.seeds) > 1 else ''}: {seeds}."
  )


def as_html(comparison: Comparison, pictures: tuple[drawing.Picture, ...]) -> str:
  """The page: inline style, no script, no request but for its own figures."""
  remarks = "".join(f"<li>{escape(remark)}</li>" for remark in comparison.remarks)
  facts, glossary = (
    "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    for pairs in (comparison.facts, comparison.glossary)
  )
  legend = escape(tables.legend(comparison))
  if any(metric.note for metric in comparison.metrics):
    legend += " A metric's name opens its definition."
  return string.Template(_file("page.html")).substitute(
    title=escape(comparison.title),
    style=_file("page.css"),
    lead=escape(lead(comparison)),
    claim=escape(statistics.claim(len(comparison.seeds))),
    explorer=EXPLORER,
    look=LOOK,
    glossary=f'<dl class="glossary">{glossary}</dl>' if glossary else "",
    table=_table(comparison),
    legend=legend,
    remarks=_section("How far this goes", "ul", remarks),
    figures="".join(_figure(picture) for picture in pictures),
    facts=_section("How it was made", "dl", facts),
  )


def _section(title: str, tag: str, content: str) -> str:
  """A section with a list, or nothing."""
  if not content:
    return ""
  return f"<section><h2>{title}</h2><{tag}>{content}</{tag}></section>"


def _file(name: str) -> str:
  return (importlib.resources.files(__package__) / name).read_text("utf-8")


def as_markdown(comparison: Comparison, pictures: tuple[drawing.Picture, ...]) -> str:
  """The report for a repository or a terminal."""
  escaped = tables.escape_markdown

  def listed(rows: Iterable[tuple[str, ...]], heading: str = "") -> list[str]:
    lines = [f"- {': '.join(map(escaped, row))}" for row in rows]
    return [heading, "\n".join(lines)] if lines else []

  parts = [
    f"# {escaped(comparison.title)}",
    escaped(lead(comparison)),
    escaped(statistics.claim(len(comparison.seeds))),
    f"[{LOOK}]({EXPLORER})",
    *listed(comparison.glossary),
    "## Results",
    tables.markdown(comparison),
    escaped(tables.legend(comparison)),
    *listed(
      ((m.label, m.note) for m in comparison.metrics if m.note), "### Definitions"
    ),
    *listed(((remark,) for remark in comparison.remarks), "## How far this goes"),
  ]
  for picture in pictures:
    parts += [
      f"## {escaped(picture.title)}",
      f"![{escaped(picture.description)}]({picture.wide.file})",
      escaped(picture.caption),
    ]
  parts += listed(comparison.facts, "## How it was made")
  return "\n\n".join(part for part in parts if part) + "\n"
