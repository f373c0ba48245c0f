"""The receiver of alerts without a control plane: TLS, options, and requests that their sender must repeat."""

from __future__ import annotations

import asyncio
import json
import pathlib
import socket
import ssl
import time
import urllib.error
import urllib.request

import pytest

from nova.common.errors import Invalid
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig
from nova.federator.local.pki import Authority
from nova.federator.service.alerts import AlertReceiver

ALERT = json.dumps({"alerts": [{"labels": {"alertname": "x"}}]}).encode()


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def unreachable() -> Api:
    return Api(Kubeconfig(server=f"http://127.0.0.1:{free_port()}"), timeout=1.0)


def post(url: str, trusted: bytes, token: str) -> int:
    """Return the status of a request with an alert, once the receiver listens."""
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/alerts", ALERT, headers)  # noqa: S310
    context = ssl.create_default_context(cadata=trusted.decode())
    for _attempt in range(100):
        try:
            urllib.request.urlopen(request, context=context, timeout=10)  # noqa: S310
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("the receiver does not listen")


def test_receiver_serves_tls_and_lets_senders_repeat_alerts_that_were_not_stored(tmp_path: pathlib.Path) -> None:
    authority = Authority(tmp_path, "ca", "test")
    authority.issue("server", "alerts", hosts=["127.0.0.1"])
    (tmp_path / "token").write_text("secret\n")
    port = free_port()

    async def run() -> tuple[int, int]:
        async with unreachable() as api:
            receiver = asyncio.create_task(AlertReceiver(
                api, f"127.0.0.1:{port}", tmp_path / "token", tmp_path / "server.crt", tmp_path / "server.key").run())
            statuses = [await asyncio.to_thread(post, f"https://127.0.0.1:{port}", authority.pem, token)
                        for token in ("wrong", "secret")]
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)
            return statuses[0], statuses[1]
    assert asyncio.run(run()) == (401, 503)


def test_renewed_certificate_is_served_and_a_damaged_one_is_not(tmp_path: pathlib.Path) -> None:
    """cert-manager replaces the files of a certificate some weeks before it expires."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = (Authority(tmp_path / name, "ca", name) for name in ("old", "new"))
    for authority in (old, new):
        authority.issue("server", "alerts", hosts=["127.0.0.1"])
    certificate, key, port = tmp_path / "tls.crt", tmp_path / "tls.key", free_port()
    (tmp_path / "token").write_text("secret\n")

    def use(name: str, key_of: str) -> None:
        certificate.write_bytes((tmp_path / name / "server.crt").read_bytes())
        key.write_bytes((tmp_path / key_of / "server.key").read_bytes())

    async def run() -> list[int]:
        use("old", "old")
        async with unreachable() as api:
            receiver = AlertReceiver(api, f"127.0.0.1:{port}", tmp_path / "token", certificate, key)
            task = asyncio.create_task(receiver.run(reload_interval=0.05))
            statuses = []
            for names, authority in ((("old", "old"), old), (("new", "old"), old), (("new", "new"), new)):
                use(*names)
                await asyncio.sleep(0.5)
                statuses.append(await asyncio.to_thread(post, f"https://127.0.0.1:{port}", authority.pem, "wrong"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return statuses
    assert asyncio.run(run()) == [401, 401, 401]


@pytest.mark.parametrize(("address", "token", "certificate", "message"), [
    ("127.0.0.1:9099", None, None, "needs --alerts-token-file"),
    ("127.0.0.1", "token", None, "is not HOST:PORT"),
    ("127.0.0.1:99999", "token", None, "is not HOST:PORT"),
    ("127.0.0.1:9099", "token", "missing.crt", "--alerts-cert: No such file")])
def test_unusable_options_are_refused(tmp_path: pathlib.Path, address: str, token: str | None,
                                      certificate: str | None, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        AlertReceiver(unreachable(), address, tmp_path / token if token else None,
                      tmp_path / certificate if certificate else None)


def test_address_in_use_ends_the_receiver(tmp_path: pathlib.Path) -> None:
    async def run(port: int) -> None:
        await AlertReceiver(unreachable(), f"127.0.0.1:{port}", tmp_path / "token").run()
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Invalid, match="cannot listen on 127"):
        asyncio.run(run(server.getsockname()[1]))
