"""A server in front of another one that refuses requests when a test says so."""

import contextlib
import http.client
import http.server
import json
import threading
import urllib.parse


class Gate:
  """Forwards every request, or refuses it.

  Attributes:
    refuse: maps a method and a path to the status of the answer; 0 forwards.
    upstream: URL of the other server.
  """

  def __init__(self, refuse=lambda method, path: 0):
    self.refuse, self.upstream = refuse, ""

  def answer(self, method, path, headers, body):
    """(status, headers, body) of a request."""
    if status := self.refuse(method, path):
      error = {"error": {"code": status, "message": "refused by the gate"}}
      return status, {"Content-Type": "application/json"}, json.dumps(error).encode()
    place = urllib.parse.urlsplit(self.upstream).netloc
    with contextlib.closing(http.client.HTTPConnection(place)) as connection:
      connection.request(method, path, body, headers)
      found = connection.getresponse()
      return found.status, dict(found.getheaders()), found.read()

  @contextlib.contextmanager
  def open(self):
    """Serves; gives the URL."""
    gate = self

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = "HTTP/1.1"

      def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = gate.answer(
          self.command, self.path, dict(self.headers), body
        )
        self.send_response(status)
        for name, value in headers.items():
          if name.lower() not in ("content-length", "transfer-encoding", "date"):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
          self.wfile.write(body)

      do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

      def log_message(self, *unused):
        pass

    class Server(http.server.ThreadingHTTPServer):
      daemon_threads = True

      def handle_error(self, request, client_address):
        pass  # a client that does not wait for its answer

    with Server(("127.0.0.1", 0), Handler) as server:
      threading.Thread(target=server.serve_forever, daemon=True).start()
      try:
        yield f"http://127.0.0.1:{server.server_port}"
      finally:
        server.shutdown()
