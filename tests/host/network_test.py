"""Whether there is a network, on sockets of this machine."""

import socket
import threading
import urllib.request

import pytest

from ncl_jax.host import network

HOSTS = ("a.invalid", "b.invalid")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
  monkeypatch.setattr(urllib.request, "getproxies", dict)


def test_hosts_that_refuse_are_no_network(monkeypatch):
  def refuse(address, timeout):
    raise OSError(101, "Network is unreachable")

  monkeypatch.setattr(socket, "create_connection", refuse)
  assert network.offline(HOSTS)


def test_a_host_that_never_answers_is_not_waited_for(monkeypatch):
  silence = threading.Event()

  def wait(address, timeout):
    silence.wait()
    raise OSError

  monkeypatch.setattr(socket, "create_connection", wait)
  assert network.offline(HOSTS, patience=0.01)
  silence.set()


def test_one_host_that_answers_is_a_network(monkeypatch):
  connect = socket.create_connection
  with socket.create_server(("localhost", 0)) as server:

    def second(address, timeout):
      if address[0] == HOSTS[0]:
        raise OSError
      return connect(server.getsockname(), timeout)

    monkeypatch.setattr(socket, "create_connection", second)
    assert not network.offline(HOSTS)


def test_a_proxy_is_taken_for_a_network(monkeypatch):
  monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://p:1"})
  assert not network.offline(HOSTS)
