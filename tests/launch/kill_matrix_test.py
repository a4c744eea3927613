"""Two processes that are interrupted inside saves end like two that never were."""

import signal

import pytest

from benchmarks import kill_matrix


@pytest.mark.slow
def test_a_signal_in_a_save_loses_nothing(tmp_path):
  kinds = [(signal.SIGTERM, 0, "copying"), (signal.SIGKILL, 1, "writing")]
  assert len(kill_matrix.main(tmp_path, kinds)) == 2
