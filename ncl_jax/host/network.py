"""Is there a network? Asked before a download that would try again for minutes."""

import contextlib
import queue
import socket
import threading
import urllib.request
from collections.abc import Sequence


def offline(hosts: Sequence[str], patience: float = 4.0) -> bool:
  """Whether no host accepts a connection in `patience` seconds.

  Port 443 is asked. Behind a proxy the answer is always no.
  """
  if urllib.request.getproxies():
    return False
  answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

  def ask(host: str) -> None:
    try:
      socket.create_connection((host, 443), patience).close()
      answers.put(True)
    except OSError:
      answers.put(False)

  for host in hosts:
    # Threads, because looking up a name can take minutes and has no time-out.
    threading.Thread(target=ask, args=(host,), daemon=True).start()
  with contextlib.suppress(queue.Empty):
    return not any(answers.get(timeout=patience) for _ in hosts)
  return True
