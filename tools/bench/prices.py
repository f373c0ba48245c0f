"""CPU time of the individual limits and checks of a request, each measured alone in this process."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from nova.api import errors
from nova.bus import message_signing
from nova.conductor.secret_cipher import SecretCipher
from nova.db.sql import regexp
from nova.http.server import Limits, Server
from nova.service import rates
from nova.virt.images import image_formats
from tools.bench.amounts import Amounts

_ROWS = 10_000
_ANSWER = b"x" * 1000


def measure(amounts: Amounts) -> dict[str, float]:
    """Return the minimum of several rounds: in microseconds, searches of 10,000 rows in milliseconds."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in (_messages, _requests, _secrets, _images, _searches):
            for name, function, times in part(pathlib.Path(folder)):
                results[name] = round(_least(function, times, amounts.prices), 2)
                print(f"  {name:26} {results[name]:10.2f}", flush=True)
    return results


def _least(function: Callable[[], Any], times: int, rounds: int) -> float:
    """Return the minimum CPU time of a call in microseconds (in milliseconds if a round has a single call)."""
    least = float("inf")
    function()
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            function()
        least = min(least, (time.process_time() - began) / times)
    return least * (1e6 if times > 1 else 1e3)


_Prices = list[tuple[str, Callable[[], Any], int]]


def _messages(_folder: pathlib.Path) -> _Prices:
    """Measure the signature of a message to a host, and its verification."""
    master = message_signing.Keys(b"k" * 32)
    host = master.of_host("host-1")
    address = message_signing.Address("agent.run_steps", "host-1")
    wire: dict[str, Any] = {"request_id": "req-1", "user_id": "u" * 32, "project_id": "p" * 32, "roles": ["member"],
                            "is_admin": False, "sent_at": time.time(), "seconds": 60.0}
    prices: _Prices = []
    for name, size in (("300", 300), ("20000", 20_000)):
        payload = "x" * size
        signed = {**wire, message_signing.FIELD: master.sign(address, wire, payload)}
        prices += [
            (f"sign_{name}_us", lambda payload=payload: master.sign(address, wire, payload), 2000),
            (f"check_{name}_us", lambda payload=payload, signed=signed:
             host.verified_sender(address, signed, payload), 2000)]
    return prices


def _requests(_folder: pathlib.Path) -> _Prices:
    """Measure the HTTP server of the API with a minimal application, and the rate limits of a request."""
    limiters = [rates.Limiter(10**6, 60) for _ in range(3)]

    def limits() -> None:
        for limiter in limiters:
            limiter.take("project-1")

    return [("request_us", _client(_serve()), 1000), ("rate_limits_us", limits, 5000)]


def _serve() -> tuple[str, int]:
    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(_ANSWER)))])
        return [_ANSWER]

    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(listening, application, 2, Limits(), errors.body)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    address: tuple[str, int] = listening.getsockname()
    return address


def _client(address: tuple[str, int]) -> Callable[[], None]:
    """Return a function that sends a GET on a persistent connection, with minimal CPU cost in the client."""
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    get_request = (b"GET /v2.1/servers/1 HTTP/1.1\r\nHost: nova\r\nUser-Agent: bench\r\nAccept: application/json\r\n"
                b"X-Auth-Token: " + b"t" * 180 + b"\r\nOpenStack-API-Version: compute 2.96\r\n\r\n")

    def send() -> None:
        connection.sendall(get_request)
        received = b""
        while not received.endswith(_ANSWER):
            received += connection.recv(65536)

    return send


def _secrets(folder: pathlib.Path) -> _Prices:
    """Measure encryption and decryption of the stored password of a server."""
    cipher = SecretCipher(str(folder / "keys"))
    token = cipher.encrypt("p" * 16)
    return [("encrypt_us", lambda: cipher.encrypt("p" * 16), 1000), ("decrypt_us", lambda: cipher.decrypt(token), 1000)]


def _images(folder: pathlib.Path) -> _Prices:
    """Measure the format check of an image file, which runs once per downloaded image."""
    path = str(folder / "image")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "20G"], check=True)
    return [("inspect_us", lambda: image_formats.check(path, "qcow2"), 20)]


def _searches(folder: pathlib.Path) -> _Prices:
    """Measure a search in 10,000 server names: by a plain text (in the database) and by a regular expression."""
    names = sa.Table("names", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                     sa.Column("name", sa.String(255)))
    connection = sa.create_engine(f"sqlite:///{folder}/names.sqlite").connect()
    names.create(connection)
    connection.execute(names.insert(), [{"name": f"server-{number}-of-somebody"} for number in range(_ROWS)])

    def search(pattern: str) -> Callable[[], Any]:
        def find() -> list[Any]:
            match = regexp.matches(names.c.name, pattern)
            return regexp.filtered(connection, "id", sa.select(names).where(match.likely), [match], None)

        return find

    return [("search_text_ms", search("server-7777"), 1), ("search_expression_ms", search("server-7+-of"), 1)]
