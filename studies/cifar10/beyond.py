r"""The networks of the long run on CIFAR-100's images, and on corrupted images.

  python -m studies.cifar10.beyond --source=arrays:cifar10.npz \
      --other=arrays:cifar100.npz --out=runs/cifar10-long

Needs the runs that `long.py` leaves in --out. Writes OUT/data/beyond.jsonl and prints
the README's table. Resumes after the last run that was measured.
"""

import pathlib

from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import workdir as workdir_lib
from studies import beyond
from studies.cifar10.long import PLAN
from studies.cifar10.score import arguments


def main() -> None:
  """Measures, then prints."""
  parser = arguments(__doc__)
  parser.add_argument("--other", required=True, help="CIFAR-100, FORM:PATH")
  flags = parser.parse_args()
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  source, other = (
    workdir_lib.load_source(PLAN.settings("cl", spec))
    for spec in (flags.source, flags.other)
  )
  beyond.measure(out, source, other, PLAN.seeds)
  print("\n".join(tables(out / "data")))


def tables(folder: pathlib.Path) -> list[str]:
  """The README's table, from the data."""
  return beyond.table(jsonl.read(folder / "beyond.jsonl"), "CIFAR-100")


if __name__ == "__main__":
  main()
