"""A process whose peers hang ends; one whose steps are merely slow does not."""

import pathlib
import subprocess
import sys

from ncl_jax.runtime import watchdog

ROOT = pathlib.Path(__file__).parents[2]


class Ticks:
  """Stands for the event that the watchdog waits on: one tick a wait, no time."""

  def __init__(self, dog, steps):
    self.dog, self.left = dog, [n for step in steps for n in [*[0] * step, 1]]

  def wait(self, seconds):
    while self.left and self.left[0]:
      self.left.pop(0)
      self.dog.beat()
    if not self.left:
      return True
    self.left.pop(0)
    return False


def said(steps, **settings):
  """What it says when the beats are so many ticks apart."""
  sentences = []
  dog = watchdog.Watchdog(**settings, tick=1.0, act=sentences.append)
  dog._closed = Ticks(dog, steps)
  dog._watch()
  return sentences


def test_too_long_is_measured_by_the_usual_step():
  usual = [0, *[2] * 9]
  assert not said([*usual, 10], seconds=5, times=5)
  assert said([*usual, 11], seconds=5, times=5)
  assert not said([*usual, 12], seconds=12, times=5)
  assert said([*usual, 13], seconds=12, times=5)
  # Compilation comes before the first beat.
  assert not said([100, 1], seconds=5, times=5)


def test_it_ends_the_process_and_shows_where_it_hangs():
  code = (
    "import time\n"
    "from ncl_jax.runtime import watchdog\n"
    "def hangs(): time.sleep(600)\n"
    "with watchdog.Watchdog(0.02, tick=0.01) as dog:\n"
    "  dog.beat()\n"
    "  hangs()\n"
  )
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
  assert done.returncode == 1 and "in hangs" in done.stderr, done.stderr
  assert "another process may hang" in done.stderr


def test_a_process_that_is_alone_is_not_watched():
  with watchdog.Watchdog() as dog:
    assert not dog._thread.is_alive()
