"""Time to build, open and use the explorer with 10,000 images, in Chromium.

  python -m benchmarks.explorer

The page has two sides with 256 dimensions. Browser times are CPU time of the page's
main thread, which is what a user waits for on an otherwise idle machine. Needs Chromium
(Debian: chromium).
"""

import pathlib
import statistics
import sys
import tempfile
import time

from benchmarks import measure

# The tests' own browser and example.
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "explorer"))

import browser
import explorer_example as example

from ncl_jax.report import explorer

ACTIONS = {
  "sort": lambda page: page.click("[data-sort=active]"),
  "open a dimension": lambda page: page.click("tbody .link"),
  "open an image": lambda page: page.click("#detail .thumb"),
  "switch CL/NCL": lambda page: page.key("c"),
}


def main() -> None:
  """Prints a line for each action."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--images", type=int, default=10_000)
  parser.add_argument("--dimensions", type=int, default=256)
  flags = parser.parse_args()
  labels, dense, sparse = example.codes(flags.images, flags.dimensions)
  sides = explorer.Side("CL", dense), explorer.Side("NCL", sparse)
  images = example.images(flags.images)
  made = example.make(images=images, labels=labels, sides=sides)
  with tempfile.TemporaryDirectory() as folder:
    start = time.process_time()
    file = explorer.write(pathlib.Path(folder) / "explorer.html", made)
    rows = [{"": "build", "CPU ms": 1000 * (time.process_time() - start)}]
    size = file.stat().st_size / 1e6
    seen: dict[str, list[float]] = {name: [] for name in ("open", *ACTIONS)}
    for _ in range(flags.repeats):
      # A new browser each time, without a cache of the page.
      with browser.started(pathlib.Path(tempfile.mkdtemp(dir=folder))) as page:
        page.screen(1280, 860)
        page.call("Performance.enable", timeDomain="threadTicks")
        spent = busy(page)
        page.open(file.as_uri())
        page.run("0")
        seen["open"].append(busy(page) - spent)
        for name, act in ACTIONS.items():
          spent = busy(page)
          act(page)
          seen[name].append(busy(page) - spent)
  rows += [{"": k, "CPU ms": 1000 * statistics.median(v)} for k, v in seen.items()]
  measure.finish(
    f"The explorer, {flags.images:,} images, twice {flags.dimensions} dimensions",
    rows,
    flags.json,
    f"Medians. The page has {size:.1f} MB.",
  )


def busy(page) -> float:
  """CPU seconds that the page's main thread has used."""
  metrics = page.call("Performance.getMetrics")["metrics"]
  return next(m["value"] for m in metrics if m["name"] == "ThreadTime")


if __name__ == "__main__":
  main()
