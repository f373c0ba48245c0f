"""Debian's load balancers and reverse proxies in front of the API, the metadata service and a console proxy.

Debian has no Envoy: requests in its form are sent without it."""

from __future__ import annotations

import pathlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import requests

from tests.integration.allinone import start_allinone
from tests.integration.processes import Process, eventually, free_port

# Health checks by name of the HAProxy back end, with the lines of its configuration.
CHECKS = {
    "default": "option httpchk",
    "head": "option httpchk HEAD /",
    "asterisk": "option httpchk OPTIONS *",
    "healthcheck": "option httpchk GET /healthcheck",
    "http11": "option httpchk\n    http-check send meth GET uri /healthcheck ver HTTP/1.1 hdr Host api.example.com",
    "detailed": "option httpchk GET /healthcheck?detailed",
    "http11-options": "option httpchk\n    http-check send meth OPTIONS uri / ver HTTP/1.1 hdr Host api.example.com",
}
SERVICES = ("api", "metadata")
# The console proxy has no page at "/".
REFUSED = {"console-head"}


def _haproxy(base: pathlib.Path, ports: dict[str, int], front: int) -> list[str]:
    back_ends = []
    for service, port in ports.items():
        server = f"server one 127.0.0.1:{port} check inter 200ms fall 1 rise 1"
        back_ends += [f"backend {service}-{name}\n    {lines}\n    {server}" for name, lines in CHECKS.items()]
    (base / "haproxy.cfg").write_text(f"""
global
    stats socket {base}/haproxy.sock mode 600
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout check 5s
frontend in
    bind 127.0.0.1:{front}
    default_backend api-default
""" + "\n".join(back_ends) + "\n")
    return ["haproxy", "-db", "-f", str(base / "haproxy.cfg")]


def _nginx(base: pathlib.Path, ports: dict[str, int], front: int) -> list[str]:
    (base / "nginx.conf").write_text(f"""
daemon off; pid {base}/nginx.pid; error_log stderr; worker_processes 1; user root;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {base}/body; proxy_temp_path {base}/proxy; fastcgi_temp_path {base}/f;
    uwsgi_temp_path {base}/u; scgi_temp_path {base}/s;
    upstream api {{ server 127.0.0.1:{ports["api"]}; keepalive 4; keepalive_timeout 50s; }}
    server {{
        listen 127.0.0.1:{front};
        location / {{ proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection ""; }}
        location /old/ {{ proxy_pass http://127.0.0.1:{ports["api"]}/; }}
    }}
}}
""")
    return ["nginx", "-c", str(base / "nginx.conf"), "-e", "stderr"]


def _apache(base: pathlib.Path, ports: dict[str, int], front: int) -> list[str]:
    modules = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so"
                        for name in ("mpm_event", "authz_core", "proxy", "proxy_http"))
    (base / "apache.conf").write_text(f"""
{modules}
ServerName localhost
ServerRoot {base}
PidFile {base}/apache.pid
DefaultRuntimeDir {base}
ErrorLog /dev/stderr
Listen 127.0.0.1:{front}
ProxyPass / http://127.0.0.1:{ports["api"]}/ keepalive=On
""")
    return ["apache2", "-f", str(base / "apache.conf"), "-DFOREGROUND"]


FRONT_ENDS: dict[str, Callable[[pathlib.Path, dict[str, int], int], list[str]]] = {
    "haproxy": _haproxy, "nginx": _nginx, "apache2": _apache}


@pytest.fixture(name="ports", scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Start Nova and return the ports of the API, the metadata service and a console proxy."""
    base, metadata, console = tmp_path_factory.mktemp("nova"), free_port(), free_port()
    options = (f"[network]\ndriver = linuxnet\n[metadata]\nport = {metadata}\n"
               f"[vnc]\nenabled = True\nnovncproxy_port = {console}\n"
               "[cors]\nallowed_origin = https://ui.example.com\n")
    with start_allinone(base, options) as (process, url, _image):
        yield {"api": int(url.rpartition(":")[2]), "metadata": metadata, "console": console}
    assert "Traceback" not in process.log.read_text()


@pytest.fixture(name="front", params=sorted(FRONT_ENDS))
def fronted(request: pytest.FixtureRequest, ports: dict[str, int], tmp_path: pathlib.Path) -> Iterator[str]:
    """Start a front end and return its URL."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    front = free_port()
    process = Process(request.param, FRONT_ENDS[request.param](tmp_path, ports, front), tmp_path / "front.log")
    process.start()
    try:
        eventually(lambda: _listens(front), 30, f"{request.param} listens")
        yield f"http://127.0.0.1:{front}"
    finally:
        process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_front_end_forwards_requests_over_persistent_connections(front: str) -> None:
    """Requests with and without keep-alive, with small and large responses, bodies and errors."""
    headers = {"X-Auth-Token": "admin:admin"}
    flavor = {"flavor": {"name": f"f{time.monotonic_ns()}", "vcpus": 1, "ram": 128, "disk": 1}}
    with requests.Session() as session:
        for client in (session, requests):
            for _request in range(25):
                assert client.get(f"{front}/v2.1/", timeout=30).status_code == 200
                assert client.get(f"{front}/v2.1/os-services", headers=headers, timeout=30).status_code == 200
                assert client.head(f"{front}/healthcheck", timeout=30).status_code == 200
                assert client.options(f"{front}/", timeout=30).status_code == 200
        made = session.post(f"{front}/v2.1/flavors", json=flavor, headers=headers, timeout=30)
        assert made.status_code == 200
        again = session.post(f"{front}/v2.1/flavors", json=flavor, headers=headers, timeout=30)
        assert again.status_code == 409
        assert session.get(f"{front}/v2.1/openapi", headers=headers, timeout=30).json()["openapi"]
    print("GET, HEAD, OPTIONS and POST, over a kept connection and over a connection for each request")


def test_front_end_forwards_cors_preflight_requests(front: str) -> None:
    answer = requests.options(f"{front}/v2.1/servers", timeout=30, headers={
        "Origin": "https://ui.example.com", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-auth-token"})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://ui.example.com")


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_health_checks_succeed(ports: dict[str, int], tmp_path: pathlib.Path) -> None:
    process = Process("haproxy", _haproxy(tmp_path, ports, free_port()), tmp_path / "haproxy.log")
    process.start()
    try:
        eventually((tmp_path / "haproxy.sock").exists, 30, "HAProxy has started")
        wanted = {f"{service}-{name}" for service in ports for name in CHECKS} - REFUSED
        eventually(lambda: {name for name, state in _states(tmp_path).items() if state.startswith("L7OK")} == wanted,
                   30, "all health checks succeed")
        print(f"checked: {', '.join(sorted(wanted))}")
    finally:
        process.kill()


def _states(base: pathlib.Path) -> dict[str, str]:
    """Return the status of the last health check by back end."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(base / "haproxy.sock"))
        client.sendall(b"show stat\n")
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    header, *lines = text.removeprefix("# ").strip().splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    return {row["pxname"]: row["check_status"].lstrip("* ") for row in rows if row["svname"] == "one"}


# Requests of front ends and simple clients, with the status expected from both services.
RAW = {
    b"OPTIONS / HTTP/1.0\r\n\r\n": 200,
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n": 200,
    b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n": 200,
    b"GET / HTTP/1.0\r\n\r\n": 200,
    b"HEAD / HTTP/1.0\r\n\r\n": 200,
    b"GET /healthcheck HTTP/1.0\r\n\r\n": 200,
    b"GET /healthcheck?detailed HTTP/1.0\r\n\r\n": 200,
    b"HEAD /healthcheck HTTP/1.0\r\nConnection: keep-alive\r\n\r\n": 200,
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nHost:\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\n\r\n": 400,  # RFC 9112 section 3.2: a request of HTTP/1.1 has a Host header
    b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n": 200,
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    # Envoy's health check, and a request that Envoy forwards.
    b"GET /healthcheck HTTP/1.1\r\nhost: nova\r\nuser-agent: Envoy/HC\r\n\r\n": 200,
    b"GET / HTTP/1.1\r\nhost: cloud\r\nx-forwarded-proto: http\r\nx-request-id: 9d2c0e8e-2f3a-4a1e\r\n"
    b"x-envoy-expected-rq-timeout-ms: 15000\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n": 200,
}


@pytest.mark.parametrize("service", SERVICES)
def test_requests_without_host_or_with_http_1_0_are_answered(ports: dict[str, int], service: str) -> None:
    found = {}
    for text in RAW:
        with socket.create_connection(("127.0.0.1", ports[service]), 10) as client:
            client.sendall(text)
            found[text] = int(client.recv(65536).split()[1])
    print(f"{service}: {len(found)} forms of requests")
    assert found == RAW
