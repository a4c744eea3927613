"""Several processes of `process.py`, over loopback: started, waited for, ended."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from ncl_jax.runtime import jsonl

ROOT = pathlib.Path(__file__).parent.parent
PROCESS = pathlib.Path(__file__).parent / "process.py"


def start(tmp_path, *commands, slurm=False):
  """`process.py` once a command, the 8 devices shared among them.

  They find each other by flags, or by what Slurm would tell them.
  """
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  environment = os.environ | {
    "PYTHONPATH": str(ROOT),
    "JAX_NUM_CPU_DEVICES": str(8 // len(commands)),
    # One for all tests of a worker, as the programs are the same.
    "JAX_COMPILATION_CACHE_DIR": str(tmp_path.parent / "programs"),
  }
  running = []
  for i, command in enumerate(commands):
    flags = [*command, "--heartbeat_seconds=10"]
    if slurm:
      flags.append("--distributed")
      environment |= {
        "JAX_COORDINATOR_PORT": str(port),
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(len(commands)),
        "SLURM_PROCID": str(i),
        "SLURM_LOCALID": "0",
      }
    elif len(commands) > 1:
      flags += [
        f"--coordinator=127.0.0.1:{port}",
        f"--num_processes={len(commands)}",
        f"--process_id={i}",
      ]
    running.append(
      subprocess.Popen(
        [sys.executable, str(PROCESS), *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  return running


def finish(running, timeout=240):
  """[(exit code, standard output, errors)] of processes; none is left behind."""
  try:
    ended = [process.communicate(timeout=timeout) for process in running]
  finally:
    for process in running:
      process.kill()
  return [(p.returncode, *texts) for p, texts in zip(running, ended, strict=True)]


def wait_for_step(running, file, step):
  """Returns once the metrics show a step; a process that has ended is an error."""
  while not any(row["step"] >= step for row in jsonl.read(file)):
    for process in running:
      with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
