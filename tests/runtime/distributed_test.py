"""Asked to stop, several processes, and a peer that dies."""

import contextlib
import functools
import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
import tiny
from processes import PROCESS, ROOT, finish, start, wait_for_step

from ncl_jax import errors
from ncl_jax.errors import InputError
from ncl_jax.runtime import checkpoint, distributed, jsonl, tensors


@pytest.mark.parametrize(
  ("settings", "says"),
  [
    (("host:1", 2, -1), "--process_id is missing"),
    (("", 2, 0), "--coordinator is missing"),
    (("host:1", 2, 2), "a process from 0 to 1"),
    (("host", 2, 0), "HOST:PORT"),
  ],
)
def test_half_a_set_up_is_refused(settings, says):
  with pytest.raises(InputError, match=says):
    distributed.initialize(*settings)
  with pytest.raises(InputError, match="--distributed is too much"):
    distributed.initialize("host:1", 2, 0, detect=True)


def test_processes_do_not_look_for_each_other_through_a_proxy(monkeypatch):
  for name in ("http_proxy", "HTTPS_PROXY", "grpc_proxy"):
    monkeypatch.setenv(name, "http://proxy.example:3128")
  seen = []
  monkeypatch.setattr(
    jax.distributed, "initialize", lambda **_: seen.append(dict(os.environ))
  )
  distributed.initialize("127.0.0.1:1", 2, 0)
  (during,) = seen
  assert not [name for name in during if name.lower().endswith("_proxy")]
  assert os.environ["HTTPS_PROXY"] == "http://proxy.example:3128"


# Programs of the checkout, whatever is installed.
CHECKOUT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def as_from_a_terminal():
  """What runs in the background or under nohup inherits signals that are ignored."""
  before = {
    number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)
  }
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def test_alone_nothing_is_started():
  distributed.initialize()
  distributed.agree("this", "that")
  distributed.leave(1)


@pytest.mark.parametrize(
  ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_is_a_question_and_the_second_one_acts(number, code):
  before = signal.getsignal(number)
  with distributed.StopRequests() as stop:
    assert not stop.at()
    os.kill(os.getpid(), number)
    assert stop.at()
    stopped = stop.stopped(2, 9)
    assert stopped.exit_code == code and "step 2 of 9" in str(stopped)
    assert signal.getsignal(number) == before
  with distributed.StopRequests():
    pass
  assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_scheduler_and_a_closed_terminal_ask_as_often_as_they_like(number):
  before = signal.getsignal(number)
  with distributed.StopRequests() as stop:
    assert not stop.at()
    for _ in range(3):
      os.kill(os.getpid(), number)
    assert stop.at()
    stopped = stop.stopped(2, 9)
    assert stopped.exit_code == 143 and number.name in str(stopped)
    # What comes after a warning is the first of its kind: the save is not cut off.
    os.kill(os.getpid(), signal.SIGTERM)
  assert signal.getsignal(number) == before


def test_what_nohup_ignores_stays_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    distributed.hear_as_sigterm()
    with distributed.StopRequests() as stop:
      os.kill(os.getpid(), signal.SIGHUP)
      assert not stop.at()
  finally:
    signal.signal(signal.SIGHUP, before)


def test_where_nothing_can_be_saved_they_end_a_program_as_sigterm_does():
  code = (
    "import os, signal\n"
    "from ncl_jax.runtime import distributed\n"
    "distributed.hear_as_sigterm()\n"
    "assert signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGUSR1)\n"
    "os.kill(os.getpid(), signal.SIGUSR1)\n"
  )
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
  assert done.returncode == -signal.SIGTERM


def test_a_run_that_is_warned_is_saved(tmp_path):
  running = subprocess.Popen(
    [sys.executable, str(PROCESS), *long_training(tmp_path)], cwd=ROOT, env=CHECKOUT
  )
  try:
    wait_for_step([running], tmp_path / "run" / "metrics.jsonl", 4)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(120) == 143
  finally:
    running.kill()
  assert_everything_logged_is_saved(tmp_path / "run")


# The terminal becomes the process's own, as in a shell.
OWN_TERMINAL = (
  "import os, sys; os.login_tty(0); "
  "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path):
  ours, theirs = pty.openpty()
  own = [sys.executable, "-c", OWN_TERMINAL]
  if subprocess.run(
    [*own, "-c", "pass"], stdin=theirs, stderr=subprocess.PIPE
  ).returncode:
    pytest.skip("no process can have a terminal of its own here")
  os.close(ours)
  os.close(theirs)  # it belonged to the process that has ended
  ours, theirs = pty.openpty()
  command = [*own, str(PROCESS), *long_training(tmp_path)]
  running = subprocess.Popen(
    command, cwd=ROOT, env=CHECKOUT, stdin=theirs, stdout=theirs, stderr=theirs
  )
  os.close(theirs)
  closed = threading.Event()
  reader = threading.Thread(target=watch, args=(ours, closed))
  reader.start()
  try:
    wait_for_step([running], tmp_path / "run" / "metrics.jsonl", 4)
    closed.set()  # the kernel sends SIGHUP, and writing is an error from now on
    assert running.wait(120) == 143
  finally:
    closed.set()
    running.kill()
    reader.join()
  assert_everything_logged_is_saved(tmp_path / "run")


def long_training(folder):
  data = tiny.npz(folder / "data.npz")
  return [
    *training(folder, "run"),
    "--config.train.epochs=4000",
    f"--config.data.source=arrays:{data}",
  ]


def assert_everything_logged_is_saved(workdir):
  logged = jsonl.read(workdir / "metrics.jsonl")
  assert checkpoint.steps(workdir)[-1] >= logged[-1]["step"] > 0


def watch(terminal, closed):
  """Passes on what a program shows, as a terminal does; then closes."""
  with contextlib.suppress(OSError):
    while not closed.is_set():
      if select.select([terminal], [], [], 0.1)[0]:
        print(os.read(terminal, 2**16).decode(errors="replace"), end="")
  os.close(terminal)


def test_every_exit_code_is_in_the_guide_and_in_help():
  guide = (ROOT / "docs" / "resuming.md").read_text()
  for code in errors.EXIT_CODES:
    assert f"| {code} |" in guide
  for name, code in errors.SIGNALS.items():
    assert name.replace("SIGINT", "Ctrl-C") in errors.EXIT_CODES[code]
    assert name.replace("SIGINT", "Ctrl-C") in guide


def test_outside_the_main_thread_signals_are_left_alone():
  seen = []

  def ask():
    with distributed.StopRequests() as stop:
      seen.append(stop.at())

  thread = threading.Thread(target=ask)
  thread.start()
  thread.join()
  assert seen == [False]


# Several processes, over loopback.


def training(tmp_path, name, *flags):
  data = tmp_path / "data.npz"
  if not data.exists():
    tiny.npz(data)
  return (
    "launch.train",
    "--config=tests/tiny.py:ncl",
    f"--config.data.source=arrays:{data}",
    f"--workdir={tmp_path / name}",
    *flags,
  )


def steps_of(folder, command, processes):
  """The values of a few steps, and the rows that each process read."""
  ended = finish(start(folder, *[command] * processes))
  assert all(code == 0 for code, _, _ in ended), ended
  shown = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
  assert all(each["values"] == shown[0]["values"] for each in shown)
  return shown[0]["values"], [each["read"] for each in shown]


@pytest.fixture(scope="module")
def steps_of_one(tmp_path_factory):
  return steps_of(tmp_path_factory.mktemp("one"), ("steps",), 1)


@pytest.mark.parametrize(
  "mesh", [(), ("interleaved",)], ids=["in order", "interleaved"]
)
def test_two_processes_give_the_numbers_of_one(tmp_path, steps_of_one, mesh):
  one, (whole,) = steps_of_one
  two, parts = steps_of(tmp_path, (*mesh, "steps"), 2)
  np.testing.assert_allclose(two, one, rtol=1e-10)
  assert one[0][0] > one[-1][0] + 0.01, "nothing was learnt: nothing was compared"
  # Each process read the rows of its own devices, two a device, and no more.
  owner = np.repeat([0, 1, 1, 0, 0, 1, 0, 1] if mesh else [0] * 4 + [1] * 4, 2)
  for batch, *halves in zip(whole, *parts, strict=True):
    assert halves == [np.array(batch)[owner == p].tolist() for p in (0, 1)]


@pytest.mark.slow
def test_an_interleaved_mesh_leaves_each_image_with_its_own_features(tmp_path):
  results = []
  for command in [("by_position",)], [("interleaved", "by_position")] * 2:
    ended = finish(start(tmp_path, *command))
    assert all(code == 0 for code, _, _ in ended), ended
    shown = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
    assert all(each == shown[0] for each in shown)
    results.append(shown[0])
  one, two = results
  assert one["ids"] == two["ids"] == list(range(45))
  assert one["ids of views"] == two["ids of views"] == list(range(64))
  assert np.std(one["h"], axis=0).max() > 1e-3, "all alike: nothing was compared"
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), two, one
  )


@pytest.mark.slow
def test_two_processes_stop_evaluate_go_on_and_end_together(tmp_path):
  work = tmp_path / "two"
  file = work / "metrics.jsonl"
  # Calls of 2 and 1 steps: a request must be found at the end of any of them, and
  # between saves by the clock.
  long = training(
    tmp_path,
    "two",
    "--config.train.epochs=4000",
    "--config.train.steps_per_call=3",
    "--config.train.checkpoint_every_minutes=0.01",
  )
  # A warning to one of them: both save the same step and say so.
  running = start(tmp_path, long, long)
  wait_for_step(running, file, 6)
  running[1].send_signal(signal.SIGUSR1)
  ended = finish(running)
  assert [code for code, _, _ in ended] == [143, 143], ended
  said = [err.splitlines()[-1] for _, _, err in ended]
  assert said[0] == said[1] and "stopped by SIGTERM after step" in said[0]
  step = int(said[0].split("after step ")[1].split()[0])
  assert (work / "checkpoints" / str(step)).is_dir()

  # Their checkpoint, evaluated by two processes and by one.
  knn = ("launch.knn", f"--workdir={work}")
  for processes in (2, 1):
    ended = finish(start(tmp_path, *[knn] * processes))
    assert all(code == 0 for code, _, _ in ended), ended
  by_two, by_one = jsonl.read(work / "eval" / "knn.jsonl")
  assert by_two["h"] == by_one["h"] and by_two["f"] == by_one["f"]

  # Going on from there one of them dies: the other ends, with a message.
  running = start(tmp_path, long, long)
  wait_for_step(running, file, step + 2)
  running[1].kill()
  (code, _, err), _ = finish(running, timeout=60)
  assert code not in (0, None)
  assert "another task died" in err or "Gloo" in err, err
  logged = [row["step"] for row in jsonl.read(file)]
  assert logged == sorted(set(logged)) and step in range(logged[-1])


def test_two_processes_end_at_once_where_nobody_asks_for_signals(tmp_path):
  running = start(tmp_path, *[("evaluating", str(tmp_path))] * 2)
  try:
    while not all((tmp_path / name).exists() for name in "01"):
      assert all(process.poll() is None for process in running), finish(running)
      time.sleep(0.1)
    running[1].send_signal(signal.SIGTERM)
    running[0].send_signal(signal.SIGUSR1)  # the last, as it has the coordinator
    # What a shell calls 143.
    assert [process.wait(30) for process in running] == [-signal.SIGTERM] * 2
  finally:
    finish(running)


def test_a_process_that_never_appears_is_not_waited_for_for_ever():
  code = (
    "from ncl_jax.runtime import distributed\n"
    "distributed.initialize(*ARGS, timeouts=distributed.Timeouts(start=2))\n"
  )
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  code = code.replace("ARGS", f"('127.0.0.1:{port}', 2, 0)")
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
  )
  assert done.returncode and "JAX distributed service detected" in done.stderr


@pytest.mark.slow
def test_a_process_that_hangs_ends_all_of_them(tmp_path):
  held = tmp_path / "held"
  held.mkdir()
  command = training(tmp_path, "run", "--config.train.epochs=4000", "--hang_seconds=5")
  running = start(tmp_path, ("held", str(held), *command), command)
  ended = finish(running, timeout=240)
  assert all(code for code, _, _ in ended), ended
  # Of five seconds, or of a hundred usual steps.
  stacks = [err for _, _, err in ended if "Timeout (0:" in err]
  assert stacks and any("in save" in err for err in stacks), ended


@pytest.mark.slow
def test_sigterm_while_a_checkpoint_is_written_is_kept_in_mind(tmp_path):
  peace, work, folder = (tmp_path / name for name in ("peace", "work", "held"))
  flags = (
    "--config.train.epochs=8",
    "--config.train.checkpoint_every_epochs=1",
    "--config.train.keep_checkpoints=8",
  )
  command = training(tmp_path, "peace", *flags)
  ended = finish(start(tmp_path, command, command), timeout=600)
  assert [code for code, _, _ in ended] == [0, 0], ended
  # A run that goes on: steps are counted from its beginning, not from this start.
  shutil.copytree(peace, work)
  for step in range(15, 25, 3):
    shutil.rmtree(work / "checkpoints" / str(step))
  folder.mkdir()
  command = training(tmp_path, "work", *flags)
  running = start(tmp_path, ("held", str(folder), *command), command)
  while not (folder / "held").exists():
    assert all(process.poll() is None for process in running)
    time.sleep(0.1)
  time.sleep(2)  # the other process is inside Orbax by now
  running[0].send_signal(signal.SIGTERM)
  time.sleep(1)
  (folder / "go").touch()
  ended = finish(running, timeout=600)
  assert [code for code, _, _ in ended] == [143, 143], ended
  (stopped,) = {int(err.split("after step ")[-1].split()[0]) for _, _, err in ended}
  assert 15 <= stopped < 24 and stopped in checkpoint.steps(work)
  ended = finish(start(tmp_path, command, command), timeout=600)
  assert [code for code, _, _ in ended] == [0, 0], ended
  one, other = (
    tensors.digest(checkpoint.load_model(path, None, on_one(), 24)[0])
    for path in (peace, work)
  )
  assert one == other


def on_one():
  return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def test_processes_that_were_given_different_settings_are_told(tmp_path):
  commands = [
    training(tmp_path, "run", f"--config.loss.temperature={t}") for t in (0.2, 0.3)
  ]
  ended = finish(start(tmp_path, *commands, slurm=True), timeout=60)
  assert any(
    code == 2 and "the config differs between the processes: process 1" in err
    for code, _, err in ended
  ), ended
  assert all(code != 0 for code, _, _ in ended)
  assert not (tmp_path / "run").exists()
