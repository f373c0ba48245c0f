"""Keystone and Glance as served by devstack, with many kinds of requests over one keep-alive connection.

NOVA_TEST_KEYSTONE names a virtual environment with keystone, glance and gunicorn. NOVA_TEST_KEPT_SECONDS is the
duration of the test (3600 simulates an hour of a stack's clients).
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests
import urllib3

from tests.integration.processes import Process, eventually, free_port
from tests.paths import ROOT

HOME = pathlib.Path(os.environ.get("NOVA_TEST_KEYSTONE", "/nowhere"))
DEVSTACK = ROOT / "devstack"
SECONDS = float(os.environ.get("NOVA_TEST_KEPT_SECONDS", "10"))
# Keep-alive timeout of the server in seconds: the value of devstack if the test is long enough to wait for it.
KEPT = 75 if SECONDS >= 600 else 2
_PASSWORD = "right"
_START = 180.0

pytestmark = pytest.mark.skipif(not (HOME / "bin/gunicorn").exists(), reason="NOVA_TEST_KEYSTONE names no Keystone")


class Service:
    """Keystone or Glance with its own database, under gunicorn with the options of devstack."""

    def __init__(self, name: str, folder: pathlib.Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
        self.name, self.folder, self.etc = name, folder, folder / "etc" / name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.etc.mkdir(parents=True)
        lines = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
        conf = "glance-api.conf" if name == "glance" else "keystone.conf"
        (self.etc / conf).write_text("\n".join([*lines, ""]))
        self._process = Process(name, [str(HOME / "bin/gunicorn")], folder / f"{name}.log", env={
            f"OS_{name.upper()}_CONFIG_DIR": str(self.etc),
            "GUNICORN_CMD_ARGS": f"--config {shlex.quote(str(self.etc / 'gunicorn.conf.py'))}"})

    def manage(self, *words: str) -> None:
        done = subprocess.run([str(HOME / f"bin/{self.name}-manage"), "--config-dir", str(self.etc), *words],
                              capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]

    def start(self) -> None:
        script = f'. {DEVSTACK}/lib/common.sh; . {DEVSTACK}/lib/keystone.sh; write_gunicorn_options "$@"'
        subprocess.run(["bash", "-c", script, "bash", self.name, str(self.port)], check=True, timeout=60, env={
            **os.environ, "DATA_DIR": str(self.folder), "LISTEN": "127.0.0.1", "NOVA_DATABASE": "sqlite"})
        with (self.etc / "gunicorn.conf.py").open("a") as options:
            options.write(f"keepalive = {KEPT}\n")
        self._process.start()
        eventually(self._answers, _START, f"{self.name} answers {self._process.tail()}", interval=0.5)

    def _answers(self) -> bool:
        try:
            return requests.get(self.url, timeout=30).status_code == 300
        except requests.RequestException:
            return False

    def stop(self) -> None:
        self._process.kill()


_LOGIN = {"auth": {
    "identity": {"methods": ["password"], "password": {"user": {
        "name": "admin", "domain": {"id": "default"}, "password": _PASSWORD}}},
    "scope": {"project": {"name": "admin", "domain": {"id": "default"}}}}}


def _token(keystone: Service) -> str:
    answer = requests.post(f"{keystone.url}/v3/auth/tokens", json=_LOGIN, timeout=60)
    return answer.headers["X-Subject-Token"]


@pytest.fixture(scope="module")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("keystone")
    keys = {"key_repository": folder / "fernet"}
    made = Service("keystone", folder, {
        "database": {"connection": f"sqlite:///{folder}/keystone.sqlite"}, "fernet_tokens": keys,
        "fernet_receipts": keys, "credential": keys, "identity": {"password_hash_rounds": 4}})
    made.manage("db_sync")
    made.manage("fernet_setup", "--keystone-user", "root", "--keystone-group", "root")
    made.manage("bootstrap", "--bootstrap-password", _PASSWORD, "--bootstrap-region-id", "R",
                "--bootstrap-public-url", f"{made.url}/v3", "--bootstrap-internal-url", f"{made.url}/v3")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def glance(keystone: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("glance")
    for name in ("images", "staging", "tasks"):
        (folder / name).mkdir()
    made = Service("glance", folder, {
        "DEFAULT": {"enabled_backends": "fs:file"}, "database": {"connection": f"sqlite:///{folder}/glance.sqlite"},
        "glance_store": {"default_backend": "fs"}, "fs": {"filesystem_store_datadir": folder / "images"},
        "os_glance_staging_store": {"filesystem_store_datadir": folder / "staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": folder / "tasks"},
        "paste_deploy": {"flavor": "keystone", "config_file": HOME / "etc/glance/glance-api-paste.ini"},
        "keystone_authtoken": {
            "auth_type": "password", "auth_url": keystone.url, "username": "admin", "password": _PASSWORD,
            "project_name": "admin", "user_domain_name": "Default", "project_domain_name": "Default"}})
    made.manage("db_sync")
    made.start()
    yield made
    made.stop()


class Kept:
    """A client with one connection and without retries. ``connections`` counts the connections opened so far."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token, self.connections = url, token, 0
        self._session = requests.Session()
        self._session.trust_env = False
        client = self

        class Connection(urllib3.connection.HTTPConnection):
            def connect(self) -> None:
                client.connections += 1
                super().connect()

        class Pool(urllib3.HTTPConnectionPool):
            ConnectionCls = Connection

        adapter: Any = self._session.get_adapter(url)
        adapter.poolmanager.pool_classes_by_scheme = {"http": Pool}

    def ask(self, method: str, path: str, status: int, **more: Any) -> requests.Response:
        headers = {"X-Auth-Token": self.token, **more.pop("headers", {})}
        answer = self._session.request(method, self.url + path, headers=headers, timeout=60, **more)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        if status == 204 or method == "HEAD":
            assert answer.content == b""
        return answer


def _ask_keystone(client: Kept) -> None:
    """Send requests with and without a body, for existing and missing resources, in turn."""
    subject = {"X-Subject-Token": client.token}
    client.ask("GET", "/v3/auth/tokens", 200, headers=subject)
    client.ask("HEAD", "/v3/auth/tokens", 200, headers=subject)
    project = client.ask("POST", "/v3/projects", 201, json={"project": {"name": "kept"}}).json()["project"]["id"]
    role = client.ask("GET", "/v3/roles?name=member", 200).json()["roles"][0]["id"]
    user = client.ask("GET", "/v3/users", 200).json()["users"][0]["id"]
    grant = f"/v3/projects/{project}/users/{user}/roles/{role}"
    client.ask("HEAD", grant, 404)
    client.ask("PUT", grant, 204)
    client.ask("HEAD", grant, 204)
    client.ask("DELETE", grant, 204)
    client.ask("DELETE", grant, 404)
    client.ask("DELETE", f"/v3/projects/{project}", 204)
    client.ask("GET", f"/v3/projects/{project}", 404)
    client.ask("POST", "/v3/projects", 400, json={"project": {"name": ""}})
    fresh = client.ask("POST", "/v3/auth/tokens", 201, json=_LOGIN).headers["X-Subject-Token"]
    client.ask("DELETE", "/v3/auth/tokens", 204, headers={"X-Subject-Token": fresh})
    client.ask("GET", "/v3/users", 401, headers={"X-Auth-Token": "nobody's"})


def _ask_glance(client: Kept) -> None:
    wanted = {"name": "kept", "disk_format": "raw", "container_format": "bare"}
    image = "/v2/images/" + client.ask("POST", "/v2/images", 201, json=wanted).json()["id"]
    client.ask("GET", f"{image}/file", 204)
    data = os.urandom(200_000)
    binary = {"Content-Type": "application/octet-stream"}
    client.ask("PUT", f"{image}/file", 204, data=iter([data[:100_000], data[100_000:]]), headers=binary)
    assert client.ask("GET", f"{image}/file", 200).content == data
    client.ask("PATCH", image, 200, headers={"Content-Type": "application/openstack-images-v2.1-json-patch"},
               json=[{"op": "replace", "path": "/name", "value": "kept on"}])
    client.ask("GET", "/v2/images?name=nothing", 200)
    client.ask("PUT", f"{image}/tags/one", 204)
    client.ask("DELETE", f"{image}/tags/one", 204)
    client.ask("DELETE", f"{image}/tags/one", 404)
    client.ask("DELETE", image, 204)
    client.ask("GET", image, 404)
    client.ask("POST", "/v2/images", 400, json={"name": 7})


@pytest.mark.parametrize(("name", "ask"), [("keystone", _ask_keystone), ("glance", _ask_glance)])
def test_keep_alive_connection_serves_all_kinds_of_requests(name: str, ask: Any, keystone: Service,
                                                            request: pytest.FixtureRequest) -> None:
    service: Service = request.getfixturevalue(name)
    until = time.monotonic() + SECONDS
    client = Kept(service.url, _token(keystone))
    ask(client)
    ask(client)
    assert client.connections == 1
    gaps = 0
    # Pauses shorter and longer than the keep-alive timeout. After a longer one, the client must reconnect.
    for pause in itertools.cycle((0.0, KEPT / 2, 0.1, KEPT * 1.5)):
        time.sleep(pause)
        if pause > KEPT:
            gaps, client.token = gaps + 1, _token(keystone)  # tokens end after an hour
        ask(client)
        assert client.connections <= 1 + gaps
        if gaps and time.monotonic() > until:
            break
    assert client.connections == 1 + gaps
