"""CPU cores and peak memory of this process."""

import os
import pathlib
import sys


def cores() -> int:
  """The number of CPU cores this process may use, by affinity and quota; at least 1."""
  affinity = getattr(os, "sched_getaffinity", None)
  count = len(affinity(0)) if affinity else os.cpu_count() or 1
  return max(1, int(min(count, _quota(pathlib.Path("/")))))


def peak_memory() -> float:
  """The peak memory of this process in bytes; NaN on Windows."""
  try:
    import resource
  except ImportError:
    return float("nan")
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most if sys.platform == "darwin" else most * 1024


def memory() -> float:
  """The bytes of memory this process holds; `peak_memory` where unknown."""
  try:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
  except (OSError, ValueError, IndexError):
    return peak_memory()


def _quota(root: pathlib.Path) -> float:
  """CPU seconds per second that the control group allows; infinity without a limit.

  A group's limit applies to all groups inside it. In a container the group's path may
  be the host's, which does not exist there, so the root of the mount is read too.
  """
  smallest = float("inf")
  try:
    line = (root / "proc/self/cgroup").read_text().strip().splitlines()[-1]
  except (OSError, IndexError):
    return smallest
  group = pathlib.PurePosixPath(line.rpartition(":")[2].strip("/"))
  for part in (group, *group.parents):
    try:
      quota, period = (root / "sys/fs/cgroup" / part / "cpu.max").read_text().split()
    except (OSError, ValueError):
      continue
    if quota != "max":
      smallest = min(smallest, int(quota) / int(period))
  return smallest
