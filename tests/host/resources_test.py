"""How many cores a process may use, and start-up where modules of Unix are missing."""

import os
import pathlib
import subprocess
import sys

import pytest

from ncl_jax.host import resources

V2 = "0::/kubepods/pod7/main\n"
V1 = "12:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n1:name=systemd:/docker/7\n"


@pytest.mark.parametrize(
  ("groups", "files", "expected"),
  [
    (V2, {}, 8),
    (V2, {"kubepods/pod7/main/cpu.max": "max 100000"}, 8),
    (V2, {"kubepods/pod7/main/cpu.max": "200000 100000"}, 2),
    (V2, {"kubepods/pod7/main/cpu.max": "50000 100000"}, 1),
    (V2, {"kubepods/pod7/main/cpu.max": "9900000 100000"}, 8),
    # The limit of a group around it holds too, and the path may be the host's.
    (
      V2,
      {
        "kubepods/pod7/cpu.max": "350000 100000",
        "kubepods/pod7/main/cpu.max": "max 100000",
      },
      3,
    ),
    (V2, {"cpu.max": "500000 100000"}, 5),
    (
      V1,
      {
        "cpu,cpuacct/docker/7/cpu.cfs_quota_us": "250000",
        "cpu,cpuacct/docker/7/cpu.cfs_period_us": "50000",
      },
      5,
    ),
    (
      V1,
      {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
      },
      8,
    ),
    (None, {}, 8),
  ],
)
def test_cores_are_those_of_affinity_and_quota(
  tmp_path, monkeypatch, groups, files, expected
):
  if groups is not None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
  for name, text in files.items():
    file = tmp_path / "sys" / "fs" / "cgroup" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
  quota = resources._quota
  monkeypatch.setattr(resources, "_quota", lambda _: quota(tmp_path))
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
  assert resources.cores() == expected


def test_without_affinity_all_cores_count(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.setattr(os, "cpu_count", lambda: 3)
  monkeypatch.setattr(resources, "_quota", lambda _: float("inf"))
  assert resources.cores() == 3


def test_peak_memory_is_in_bytes(monkeypatch):
  import resource

  kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert resources.peak_memory() == pytest.approx(kilobytes * 1024, rel=0.1)
  monkeypatch.setattr(sys, "platform", "darwin")
  assert resources.peak_memory() == pytest.approx(kilobytes, rel=0.1)


PROGRAMS = sorted(
  path.stem for path in (pathlib.Path(__file__).parents[2] / "launch").glob("*.py")
)


def test_every_program_starts_without_the_modules_that_only_unix_has():
  code = (
    "import importlib, sys\n"
    "missing = ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'pty')\n"
    "sys.modules.update(dict.fromkeys(missing))\n"
    "import pkgutil, ncl_jax\n"
    "from absl import flags\n"
    f"for name in {PROGRAMS}:\n"
    "  known = set(flags.FLAGS)\n"
    "  importlib.import_module(f'launch.{name}')\n"
    "  for flag in set(flags.FLAGS) - known:\n"
    "    delattr(flags.FLAGS, flag)\n"
    "for module in pkgutil.walk_packages(ncl_jax.__path__, 'ncl_jax.'):\n"
    "  importlib.import_module(module.name)\n"
    "from ncl_jax.host import resources as host\n"
    "assert host.peak_memory() != host.peak_memory()\n"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
