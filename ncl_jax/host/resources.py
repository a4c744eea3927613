"""CPU cores and peak memory of this process."""

import os
import pathlib
import sys


def cores() -> int:
  """Returns the number of CPU cores this process may use, at least 1.

  This is the number of cores in its affinity mask or, if smaller, the whole cores in
  the quota of a container or scheduler.
  """
  affinity = getattr(os, "sched_getaffinity", None)
  count = len(affinity(0)) if affinity else os.cpu_count() or 1
  return max(1, int(min(count, _quota(pathlib.Path("/")))))


def peak_memory() -> float:
  """Returns the peak memory of this process in bytes; NaN on Windows."""
  try:
    import resource
  except ImportError:
    return float("nan")
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most if sys.platform == "darwin" else most * 1024


def memory() -> float:
  """Returns the bytes of memory this process holds; `peak_memory` where unknown."""
  try:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
  except (OSError, ValueError, IndexError):
    return peak_memory()


def _quota(root: pathlib.Path) -> float:
  """CPU seconds per second that the control groups allow; infinity without a limit.

  A group's limit applies to all groups inside it. In a container the group's path may
  be the host's, which does not exist there, so the root of the mount is read too.
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
