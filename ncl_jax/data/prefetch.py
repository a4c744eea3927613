"""Prepares the next batches in a background thread while one is in use."""

import collections
import concurrent.futures
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")


def prefetch(
  make: Callable[[int], T], steps: Iterable[int], ahead: int = 2
) -> Generator[T, None, None]:
  """Yields `make(step)` for every step, up to `ahead` results in advance.

  `make` is called in one background thread, in order. `steps` may be endless. An
  exception of `make` is raised here, at its step.

  >>> list(prefetch(lambda step: step * step, range(4)))
  [0, 1, 4, 9]
  """
  pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="prefetch")
  pending: collections.deque[concurrent.futures.Future[T]] = collections.deque()
  try:
    for step in steps:
      pending.append(pool.submit(make, step))
      if len(pending) > ahead:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()
  finally:
    # Also runs on close and on garbage collection. It must not wait, because the
    # collector may run in the thread that should end.
    pool.shutdown(wait=False, cancel_futures=True)
