"""The process around the service, in parts: no server is started here."""

import ctypes
import signal
import socket
from types import SimpleNamespace

import pytest
import torch

from pmal.errors import UsageError
from pmal.serving.http import server as service_server
from pmal.serving.http.connections import Connection
from pmal.serving.http.server import address_of, bind, give_memory_back, leave_a_core, make_server

NO_SERVICE = SimpleNamespace(connections=None, report_refused=None)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        (("127.0.0.1", 8000), "http://127.0.0.1:8000/"),
        (("::1", 8000, 0, 0), "http://[::1]:8000/"),
    ],
)
def test_the_address_is_one_that_a_browser_takes(name, url):
    assert address_of(SimpleNamespace(getsockname=lambda: name)) == url


def test_a_port_that_is_taken_is_told_with_the_system_s_reason():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{port} (Address already in use")
    assert str(caught.value).endswith("): choose another --port or --host")


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_no_host_can_have_is_told_in_one_line(host):
    with pytest.raises(UsageError, match=r"cannot listen on .*: choose another --port or --host") as caught:
        bind(host, 0)
    assert "\n" not in str(caught.value)


def test_a_listener_takes_connections():
    with bind("localhost", 0) as listener, socket.create_connection(listener.getsockname()[:2], 5):
        listener.accept()[0].close()


@pytest.mark.parametrize(("threads", "cores", "kept"), [(8, 8, 7), (2, 8, 2), (1, 1, 1), (4, 2, 1)])
def test_one_core_of_several_is_left_to_the_others(monkeypatch, threads, cores, kept):
    chosen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(service_server, "usable_cores", lambda: cores)
    leave_a_core()
    assert chosen == [kept]


def test_another_c_library_keeps_its_memory(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    give_memory_back()
    asked = []
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *words: asked.append(words))
    )
    give_memory_back()
    assert asked == [(-3, 8 << 20), (-1, 64 << 20)]


def test_signals_end_the_server_and_are_the_program_s_again_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = make_server(lambda *_: None, NO_SERVICE)
    with server.capture_signals():
        signal.raise_signal(signal.SIGTERM)
        assert server.should_exit
        assert not server.force_exit
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_server_says_nothing_of_itself_and_believes_no_proxy():
    config = make_server(lambda *_: None, NO_SERVICE).config
    assert [config.server_header, config.proxy_headers, config.access_log] == [False] * 3
    assert (config.http.func, config.ws) == (Connection, "none")
