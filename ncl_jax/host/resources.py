"""What the machine gives this process: cores, and the memory it has taken."""

import os
import pathlib
import sys


def cores() -> int:
  """Returns how many CPU cores this process may use, at least 1.

  Counts the cores that the process may run on (affinity) and, where a container or a
  scheduler gives less of their time, the whole cores in its quota.
  """
  affinity = getattr(os, "sched_getaffinity", None)
  count = len(affinity(0)) if affinity else os.cpu_count() or 1
  return max(1, int(min(count, _quota(pathlib.Path("/")))))


def peak_memory() -> float:
  """Returns the most bytes of memory this process has held; NaN on Windows."""
  try:
    import resource
  except ImportError:
    return float("nan")
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most if sys.platform == "darwin" else most * 1024


def _quota(root: pathlib.Path) -> float:
  """CPU seconds a second that the control groups allow; infinity without a limit.

  A group's limit holds for all groups inside it. In a container the group's path may be
  that of the host, which does not exist there: the mount's root is looked at too.
  """
  try:
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  except OSError:
    return float("inf")
  smallest = float("inf")
  for line in lines:
    _, controllers, path = line.split(":", 2)
    if controllers == "":  # version 2
      mount, read = root / "sys/fs/cgroup", _version_2
    elif "cpu" in controllers.split(","):
      mount, read = root / "sys/fs/cgroup" / controllers, _version_1
    else:
      continue
    group = pathlib.PurePosixPath(path.strip("/"))
    for part in (group, *group.parents):
      try:
        smallest = min(smallest, read(mount / part))
      except (OSError, ValueError):
        continue
  return smallest


def _version_2(group: pathlib.Path) -> float:
  quota, period = (group / "cpu.max").read_text().split()
  return float("inf") if quota == "max" else int(quota) / int(period)


def _version_1(group: pathlib.Path) -> float:
  quota, period = (
    int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
  )
  return quota / period if quota > 0 else float("inf")
