"""nova-api as a process: workers on one socket, keep-alive and graceful shutdown."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import requests

_CONF = """
[DEFAULT]
transport_url = kombu+memory://
rpc_response_timeout = 3
[api]
auth_strategy = noauth
listen = 127.0.0.1
port = {port}
workers = 2
"""


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def process(tmp_path):
    """Start nova-api without other services, and return the process and its URL."""
    port = _free_port()
    config = tmp_path / "nova.conf"
    config.write_text(_CONF.format(port=port))
    with open(tmp_path / "log", "wb") as log:
        started = subprocess.Popen([sys.executable, "-m", "nova.cmd.api", "--config-file", str(config)],
                                   stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(url, started)
        yield started, url
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(90)


def _wait_until_up(url, started):
    for _ in range(300):
        assert started.poll() is None, "nova-api ended"
        try:
            if requests.get(url, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    raise AssertionError("nova-api did not come up")


def test_stopping_api_answers_requests_in_flight(process):
    started, url = process
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # Each request waits for a missing conductor until the call times out.
        waiting = [pool.submit(requests.get, f"{url}/v2.1/servers", timeout=60) for _ in range(8)]
        time.sleep(1)
        started.send_signal(signal.SIGTERM)
        answers = [one.result() for one in waiting]
    assert {answer.status_code for answer in answers} == {503}
    assert all("serviceUnavailable" in answer.json() for answer in answers)
    assert started.wait(60) == 0


def test_keep_alive_connection_serves_requests_after_errors(process):
    _started, url = process
    with requests.Session() as session:
        for _ in range(3):
            assert session.post(f"{url}/v2.1/servers", data=b"x" * 1024 * 1024, timeout=10).status_code == 413
            assert session.post(f"{url}/v2.1/servers", data=b"{", timeout=10).status_code == 400
            assert session.post(f"{url}/v2.1/servers", data=iter([b"{", b"x" * 200000]), timeout=10).status_code == 413
            assert session.get(f"{url}/v2.1", timeout=10).status_code == 200
