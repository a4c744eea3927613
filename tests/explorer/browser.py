"""Chromium without a window, spoken to over two pipes: the DevTools protocol."""

import base64
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

CHROMIUM = next(
  filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SECONDS = 60  # for one answer, on a machine that is busy


class Browser:
  """One page of a running Chromium.

  Attributes:
    errors: what its console and its scripts complained of, and what it asked the
      network for.
  """

  def __init__(self, read: int, write: int):
    self.errors: list[str] = []
    self._read, self._write = read, write
    self._buffer = b""
    self._count = 0
    self._session: str | None = None
    self._loaded = False
    target = self.call("Target.createTarget", url="about:blank")["targetId"]
    attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
    self._session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.call(f"{domain}.enable")

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """Sends a command and waits for its answer."""
    self._count += 1
    message = {"id": self._count, "method": method, "params": params}
    if self._session:
      message["sessionId"] = self._session
    os.write(self._write, json.dumps(message).encode() + b"\0")
    while True:
      answer = self._next()
      if answer.get("id") == self._count:
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

  def _next(self) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    while b"\0" not in self._buffer:
      ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
      assert ready, "the browser does not answer"
      part = os.read(self._read, 1 << 16)
      assert part, "the browser has ended"
      self._buffer += part
    text, _, self._buffer = self._buffer.partition(b"\0")
    message = json.loads(text)
    self._note(message.get("method"), message.get("params", {}))
    return message

  def _note(self, method: str | None, params: dict[str, Any]) -> None:
    if method == "Page.loadEventFired":
      self._loaded = True
    elif method == "Runtime.exceptionThrown":
      self.errors.append(str(params["exceptionDetails"]))
    elif method == "Runtime.consoleAPICalled":
      self.errors.append(str(params["args"]))
    elif method == "Log.entryAdded":
      self.errors.append(str(params["entry"]))
    elif method == "Network.requestWillBeSent":
      url = params["request"]["url"]
      if not url.startswith(("file:", "blob:", "data:", "about:")):
        self.errors.append(url)

  def open(self, url: str) -> None:
    """Loads a page, and waits until it is there."""
    self._loaded = False
    # A change of the fragment alone would load nothing.
    self.call("Page.navigate", url="about:blank")
    while not self._loaded:
      self._next()
    self._loaded = False
    self.call("Page.navigate", url=url)
    while not self._loaded:
      self._next()

  def run(self, script: str) -> Any:
    """The value of an expression in the page, after what it set off is drawn."""
    settled = (
      f"(async () => {{ const value = {script};"
      " await new Promise(requestAnimationFrame);"
      " await new Promise((done) => setTimeout(done)); return value; })()"
    )
    answer = self.call(
      "Runtime.evaluate", expression=settled, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
    return answer["result"].get("value")

  def click(self, selector: str) -> None:
    """Clicks the first element of that kind."""
    self.run(f"document.querySelector({json.dumps(selector)}).click()")

  def key(self, key: str) -> None:
    """Presses a key where the focus is."""
    text = key if len(key) == 1 else ""
    self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
    self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
    self.run("0")

  def text(self, selector: str) -> str:
    """What a reader sees of the first element of that kind."""
    return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

  def screen(self, width: int, height: int, dark: bool = False) -> None:
    """Makes the window that large, and light or dark."""
    self.call(
      "Emulation.setDeviceMetricsOverride",
      width=width,
      height=height,
      deviceScaleFactor=1,
      mobile=width < 600,
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    self.call("Emulation.setEmulatedMedia", features=[scheme])
    self.run("0")

  def screenshot(self, file: pathlib.Path) -> None:
    """Keeps what the window shows, as PNG."""
    self.run("new Promise((done) => setTimeout(done, 100))")
    shot = self.call("Page.captureScreenshot", format="png")
    file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[Browser]:
  """A Chromium of our own, with its profile in `folder`, ended at the end."""
  to_browser, from_browser = os.pipe(), os.pipe()
  # Chromium reads descriptor 3 and writes 4; the shell moves ours there.
  theirs = [
    fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser[0], from_browser[1])
  ]
  command = [
    CHROMIUM,
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
    f"--user-data-dir={folder / 'profile'}",
  ]
  process = subprocess.Popen(
    ["bash", "-c", f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}', *command],
    pass_fds=theirs,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  for fd in (to_browser[0], from_browser[1], *theirs):
    os.close(fd)
  try:
    yield Browser(from_browser[0], to_browser[1])
  finally:
    process.terminate()
    process.wait(SECONDS)
    os.close(to_browser[1])
    os.close(from_browser[0])
