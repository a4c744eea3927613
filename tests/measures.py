"""Measures of the layout: imports, sizes and paths through the code.

`python tests/measures.py` prints them; `measures_test.py` holds their limits.
"""

import ast
import functools
import pathlib
import statistics
from collections.abc import Iterator, Mapping

from ncl_jax import methods

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "ncl_jax"
FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "launch").glob("*.py")])

# What a batch passes on its way to the loss, and a checkpoint on its way to the report:
# (file, function), in order.
BATCH = (
  ("data/__init__.py", "load"),
  ("data/source.py", "train_batches"),
  ("training/input_pipeline.py", "open_feed"),
  ("training/loop.py", "train"),
  ("training/step.py", "make_steps"),
  ("training/update.py", "make_update"),
  ("training/loss.py", "of_pairs"),
  ("methods/implementations.py", "nt_xent"),
)
CHECKPOINT = (
  ("runtime/checkpoint.py", "load_model"),
  ("evaluators/run.py", "open_run"),
  ("features.py", "extract"),
  ("metrics/knn.py", "knn_predict_grid"),
  ("evaluators/knn.py", "evaluate"),
  ("experiments/measurements.py", "run"),
  ("experiments/comparison.py", "comparison"),
  ("report/tables.py", "rows"),
)


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
  """The syntax tree of a file."""
  return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: pathlib.Path) -> str:
  """A file as a module: "ncl_jax.losses.clip"."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts).removesuffix(".__init__")


def imports(path: pathlib.Path, top_level_only: bool = False) -> Iterator[str]:
  """Names of all modules that a file imports, `from a import b` as "a.b" too."""
  nodes = tree(path).body if top_level_only else ast.walk(tree(path))
  for node in nodes:
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_graph() -> dict[str, set[str]]:
  """The modules of the package and what each imports, inside functions too."""
  modules = {name_of(path): path for path in PACKAGE.rglob("*.py")}
  del modules["ncl_jax"]  # its version only

  def imported(path):
    for node in ast.walk(tree(path)):
      if isinstance(node, ast.ImportFrom):
        for alias in node.names:
          full = f"{node.module}.{alias.name}"
          yield full if full in modules else node.module

  return {
    name: (set(imported(path)) & modules.keys()) - {name}
    for name, path in modules.items()
  }


def package_graph() -> dict[str, set[str]]:
  """The packages, and single modules at the top, and what each imports."""
  graph: dict[str, set[str]] = {}
  for module, found in module_graph().items():
    here = module.split(".")[1]
    graph.setdefault(here, set()).update(
      {other.split(".")[1] for other in found} - {here}
    )
  return graph


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
  """The nodes that lie on a cycle or behind one; [] if there is none."""
  graph = dict(graph)
  while leaves := {name for name, found in graph.items() if not found & graph.keys()}:
    graph = {name: found for name, found in graph.items() if name not in leaves}
  return sorted(graph)


def floors(graph: Mapping[str, set[str]]) -> int:
  """The length of the longest chain of imports, in nodes."""

  @functools.cache
  def floor(name):
    return 1 + max((floor(other) for other in graph[name]), default=0)

  return max(map(floor, graph))


def functions() -> Iterator[tuple[str, ast.FunctionDef, bool]]:
  """("losses/clip.py: clip", its definition, whether it is public) of each function."""

  def below(node, where, public):
    for child in ast.iter_child_nodes(node):
      if isinstance(child, ast.FunctionDef):
        shown = public and not child.name.startswith("_")
        yield f"{where}: {child.name}", child, shown
        yield from below(child, where, False)
      else:
        yield from below(child, where, public)

  for path in FILES:
    where = str(path.relative_to(ROOT)).removeprefix("ncl_jax/")
    yield from below(tree(path), where, True)


def lines_of(function: ast.FunctionDef) -> int:
  """Lines of a function, its docstring and its decorators not counted."""
  lines = function.end_lineno - function.lineno + 1
  if ast.get_docstring(function) is not None:
    text = function.body[0]
    lines -= text.end_lineno - text.lineno + 1
  return lines


def parameters_of(function: ast.FunctionDef) -> int:
  """Parameters of a function, without self and cls."""
  given = function.args
  named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
  starred = [x for x in (given.vararg, given.kwarg) if x]
  return len([x for x in named if x.arg not in ("self", "cls")]) + len(starred)


def dispatches() -> set[str]:
  """Packages in which code branches on the name of the loss, or on a method itself."""

  def is_name(node):
    text = ast.unparse(node)
    return text.endswith((".loss.name", "['loss']['name']", "methods.of(config).name"))

  records = {name for name, x in vars(methods).items() if isinstance(x, methods.Method)}

  def is_method(node):
    return ast.unparse(node).removeprefix("methods.") in records

  found = set()
  for path in FILES:
    for node in ast.walk(tree(path)):
      parts: list[ast.AST] = []
      if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
      elif isinstance(node, ast.Match):
        parts = [node.subject]
      elif isinstance(node, ast.Subscript):
        parts = [node.slice] if is_name(node.slice) else []
      if any(is_name(part) or is_method(part) for part in parts):
        found.add(path.relative_to(ROOT).parts[1].removesuffix(".py"))
  return found


def total_lines() -> int:
  """Lines of Python that are not blank."""
  texts = (path.read_text(encoding="utf-8") for path in FILES)
  return sum(1 for text in texts for line in text.splitlines() if line.strip())


def longest(sizes: Mapping[str, int]) -> str:
  """The largest entry, as text."""
  name = max(sizes, key=sizes.__getitem__)
  return f"{sizes[name]} ({name})"


def file_lines() -> dict[str, int]:
  """Lines of each file."""
  return {
    str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
    for path in FILES
  }


def report() -> str:
  """All measures, a line each."""
  files = file_lines()
  every = list(functions())
  public = {name: parameters_of(f) for name, f, shown in every if shown}
  rows = {
    "lines of Python that are not blank": total_lines(),
    "files": len(files),
    "median lines of a file": statistics.median(files.values()),
    "longest file": longest(files),
    "longest function": longest({name: lines_of(f) for name, f, _ in every}),
    "most parameters of a public function": longest(public),
    "public functions of more than 6": [n for n, count in public.items() if count > 6],
    "modules at the top": len(
      [p for p in PACKAGE.glob("*.py") if p.stem != "__init__"]
    ),
    "import floors, of packages": floors(package_graph()),
    "import floors, of modules": floors(module_graph()),
    "modules on a cycle": cycle(module_graph()),
    "packages that branch on loss.name": sorted(dispatches()),
    "files from load to the loss": len(BATCH),
    "files from a checkpoint to a row": len(CHECKPOINT),
  }
  return "\n".join(f"{name}: {value}" for name, value in rows.items())


if __name__ == "__main__":
  print(report())
