"""A private Cinder with its NFS driver, and a Keystone for it.

Both are searched in NOVA_TEST_CINDER (a virtual environment with cinder, keystone, uwsgi and PyMySQL), else on the
PATH. Keys of encrypted volumes are in a Barbican (NOVA_TEST_BARBICAN). NFS is not needed: mount(8) uses a helper that
bind-mounts the exported directory.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import requests

from tests.integration.databases import Server
from tests.integration.processes import Process, eventually, free_port
from tests.integration.rabbit import Rabbit
from tests.integration.volumes.barbican_server import Barbican

_PROGRAMS = ("cinder-manage", "cinder-volume", "cinder-scheduler", "keystone-manage", "uwsgi")
_PASSWORD = "right"
# Cold start of large Python programs on a loaded machine.
_START = 180.0


def environment() -> pathlib.Path | None:
    """Return the virtual environment with these services, or None if they are not installed."""
    named = os.environ.get("NOVA_TEST_CINDER")
    found = shutil.which("cinder-volume", path=str(pathlib.Path(named, "bin")) if named else None)
    home = pathlib.Path(found).parent.parent if found else None
    return home if home and all((home / "bin" / name).exists() for name in _PROGRAMS) else None


needs_cinder = pytest.mark.skipif(
    os.geteuid() != 0 or environment() is None or not shutil.which("unshare"),
    reason="needs root, and Cinder and Keystone (NOVA_TEST_CINDER names their virtual environment)")


@pytest.fixture(name="cinder", scope="module")
def cinder_fixture(request: pytest.FixtureRequest, rabbitmq: Rabbit, mariadb: Server) -> Iterator[RealCinder]:
    """Start a Cinder. A module may parametrize the fixture with the volume format."""
    with real_cinder(rabbitmq, mariadb, getattr(request, "param", "raw")) as made:
        yield made


@contextlib.contextmanager
def real_cinder(rabbit: Rabbit, mariadb: Server, disk_format: str = "raw", backends: Sequence[str] = ("nfs",),
                keys: bool = False) -> Iterator[RealCinder]:
    """Start a :class:`RealCinder` and stop it at the end."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nova-cinder-", dir="/tmp"))
    directory.chmod(0o755)
    made = RealCinder(directory, rabbit, mariadb, disk_format, backends, keys)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


class RealCinder:
    """Cinder and Keystone. ``directory`` must be accessible for all users; stop() ends all processes.

    Volumes are files in ``disk_format``. After introduce_nova(), attached volumes can have snapshots, too. Each of the
    ``backends`` has its own export, ``exports[NAME]``, and the volume type NAME; a volume without a type may be on any
    of them. With ``keys`` there is a Barbican, and volumes of the type NAME-luks are encrypted.
    """

    # The program that mounts the exports.
    HELPER = "mount.nfs"

    def __init__(self, directory: pathlib.Path, rabbit: Rabbit, mariadb: Server, disk_format: str = "raw",
                 backends: Sequence[str] = ("nfs",), keys: bool = False) -> None:
        home = environment()
        assert home is not None
        self.home, self.directory = home, directory
        self.exports = {name: directory / f"export-{name}" for name in backends}
        self.export = self.exports[backends[0]]
        self.keystone_port, self.port = free_port(), free_port()
        self.keystone = f"http://127.0.0.1:{self.keystone_port}/v3"
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: list[Process] = []
        self._token = ""
        self._format = disk_format
        self.barbican = Barbican(directory / "barbican", self.middleware()) if keys else None
        self._write(rabbit.new_vhost(), mariadb.new_database())

    # --- mounts of its exports -----------------------------------------------------------------------
    def mounting(self) -> list[str]:
        """Return the beginning of a command line whose process can mount the exports, in its own mount namespace."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                f'{" ".join(self.helper())} && exec "$@"', "sh"]

    def helper(self) -> list[str]:
        """Return a command after which processes in the same mount namespace can mount the exports."""
        return ["mount", "-t", "overlay", "-o", f"lowerdir={self.directory}/helper:/usr/sbin", "overlay", "/usr/sbin"]

    # --- the services --------------------------------------------------------------------------------
    def start(self) -> None:
        self._bootstrap()
        if self.barbican:
            self.barbican.start()
        self._run("cinder-manage", "--config-file", str(self.directory / "cinder.conf"), "db", "sync")
        config = ["--config-file", str(self.directory / "cinder.conf")]
        self._launch("cinder-api", [*self._uwsgi(self.port, "cinder.wsgi.api:application"),
                                    "--pyargv", " ".join(config)])
        self._launch("cinder-scheduler", [str(self.home / "bin" / "cinder-scheduler"), *config])
        self._launch("cinder-volume", [*self.mounting(), str(self.home / "bin" / "cinder-volume"), *config])
        try:
            eventually(self._up, _START, "Cinder is up", interval=1)
        except BaseException:
            print(self.tail())
            raise
        self._make_types()

    def stop(self) -> None:
        if self.barbican:
            self.barbican.stop()
        for process in reversed(self._processes):
            process.kill()

    def tail(self) -> str:
        return "\n".join(process.tail()[-3000:] for process in self._processes)

    def options(self) -> dict[str, Any]:
        """Return [cinder] of a Nova that uses this Cinder with a service user."""
        return {"auth_type": "password", "auth_url": self.keystone, "username": "nova", "password": _PASSWORD,
                "project_name": "service", "user_domain_id": "default", "project_domain_id": "default"}

    def middleware(self) -> dict[str, Any]:
        """Return [keystone_authtoken] for services with users from this Keystone."""
        return {**self.options(), "www_authenticate_uri": self.keystone, "service_token_roles": "service",
                "service_token_roles_required": True}

    def keys(self) -> dict[str, dict[str, Any]]:
        """Return the configuration sections for clients of the Barbican."""
        assert self.barbican is not None
        return {"key_manager": {"backend": "barbican"}, "barbican": {
            "auth_endpoint": self.keystone, "barbican_endpoint": self.barbican.url}}

    def introduce_nova(self, url: str) -> None:
        """Register Nova in Keystone's catalog, so that Cinder requests assisted snapshots of attached volumes."""
        for known in self._identity("GET", "/services?type=compute")["services"]:
            self._identity("DELETE", f"/services/{known['id']}")
        kind = self._make("/services", "service", name="nova", type="compute")["id"]
        self._make("/endpoints", "endpoint", service_id=kind, interface="public", region_id="R", url=url)

    # --- its API -------------------------------------------------------------------------------------
    def token(self) -> str:
        """Return the administrator's token."""
        return self._token

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = requests.request(method, f"{self.url}/v3{path}", json=body, timeout=60, headers={
            "X-Auth-Token": self._token, "OpenStack-API-Version": "volume 3.59"})
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def volume(self, uuid: str) -> Any:
        return self.ask("GET", f"/volumes/{uuid}")["volume"]

    def new(self, size: int = 1, **fields: Any) -> str:
        uuid = str(self.ask("POST", "/volumes", {"volume": {"size": size, "name": "made", **fields}})["volume"]["id"])
        self.wait(uuid, "available")
        return uuid

    def drop(self, uuid: str) -> None:
        """Delete a detached volume."""
        self.ask("DELETE", f"/volumes/{uuid}")
        eventually(lambda: uuid not in {each["id"] for each in self.ask("GET", "/volumes")["volumes"]}, 60,
                   f"volume {uuid} is deleted", interval=0.3)

    def wait(self, uuid: str, status: str) -> None:
        eventually(lambda: self.volume(uuid)["status"] == status, 90, f"volume {uuid} is {status}", interval=0.3)

    def snapshot(self, volume: str) -> str:
        """Create a snapshot of the volume, attached or not, and return its id."""
        uuid = str(self.ask("POST", "/snapshots", {"snapshot": {"volume_id": volume, "force": True}})["snapshot"]["id"])
        eventually(lambda: self.ask("GET", f"/snapshots/{uuid}")["snapshot"]["status"] != "creating", 90,
                   f"snapshot {uuid} is created", interval=0.3)
        assert self.ask("GET", f"/snapshots/{uuid}")["snapshot"]["status"] == "available", self.tail()
        return uuid

    def drop_snapshot(self, uuid: str) -> None:
        self.ask("DELETE", f"/snapshots/{uuid}")
        eventually(lambda: {each["id"]: each["status"] for each in self.ask("GET", "/snapshots")["snapshots"]}.get(
            uuid) != "deleting", 120, f"snapshot {uuid} is deleted", interval=0.3)
        assert uuid not in {each["id"] for each in self.ask("GET", "/snapshots")["snapshots"]}, self.tail()

    def attachments(self) -> list[Any]:
        return list(self.ask("GET", "/attachments?all_tenants=1")["attachments"])

    def files(self, *backends: str) -> dict[str, pathlib.Path]:
        """Return the files in the exports (of these back ends) by name."""
        return {path.name: path for name in backends or self.exports for path in self.exports[name].iterdir()}

    # --- setting up ----------------------------------------------------------------------------------
    def _write(self, transport_url: str, database: str) -> None:
        for name in ("fernet", "locks", "state", "mnt", "helper", "bin"):
            (self.directory / name).mkdir()
        for name, export in self.exports.items():
            export.mkdir()
            export.chmod(0o777)
            (self.directory / f"shares-{name}").write_text(f"127.0.0.1:{export}\n")
        self._script(f"helper/{self.HELPER}", 'exec mount --bind "/${1#*:/}" "$2"')
        self._script("bin/sudo", 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"')
        self._config("keystone.conf", {
            "database": {"connection": f"sqlite:///{self.directory}/keystone.sqlite"},
            "fernet_tokens": {"key_repository": self.directory / "fernet"},
            "fernet_receipts": {"key_repository": self.directory / "fernet"},
            "credential": {"key_repository": self.directory / "fernet"},
            "identity": {"password_hash_rounds": 4}})
        etc = self.home / "etc"
        self._config("rootwrap.conf", {"DEFAULT": {
            "filters_path": f"{etc}/cinder/rootwrap.d,{etc}/os-brick/rootwrap.d",
            "exec_dirs": f"{self.home}/bin,/sbin,/usr/sbin,/bin,/usr/bin", "use_syslog": False}})
        self._config("cinder.conf", {
            "DEFAULT": {
                "transport_url": transport_url, "auth_strategy": "keystone",
                "enabled_backends": ",".join(self.exports), "debug": False,
                "state_path": self.directory / "state", "rootwrap_config": self.directory / "rootwrap.conf",
                "api_paste_config": etc / "cinder/api-paste.ini", "my_ip": "127.0.0.1", "host": "cin",
                "resource_query_filters_file": etc / "cinder/resource_filters.json"},
            "database": {"connection": database},
            "oslo_concurrency": {"lock_path": self.directory / "locks"},
            "keystone_authtoken": self.middleware(),
            **{name: self._backend(name) for name in self.exports}, **(self.keys() if self.barbican else {}),
            "nova": self.options()})

    def _backend(self, name: str) -> dict[str, Any]:
        return {"volume_driver": "cinder.volume.drivers.nfs.NfsDriver", "volume_backend_name": name,
                "nfs_shares_config": self.directory / f"shares-{name}", "nfs_mount_point_base": self.directory / "mnt",
                "nfs_snapshot_support": True, "nfs_qcow2_volumes": self._format == "qcow2",
                "nas_secure_file_operations": False, "nas_secure_file_permissions": False}

    def _make_types(self) -> None:
        for name in self.exports:
            for encrypted in (False, True) if self.barbican else (False,):
                made = self.ask("POST", "/types", {"volume_type": {
                    "name": f"{name}-luks" if encrypted else name, "extra_specs": {"volume_backend_name": name}}})
                if encrypted:
                    self.ask("POST", f"/types/{made['volume_type']['id']}/encryption", {"encryption": {
                        "provider": "luks", "control_location": "front-end", "cipher": "aes-xts-plain64",
                        "key_size": 256}})

    def _script(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def _config(self, name: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
        lines = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
        (self.directory / name).write_text("\n".join(lines) + "\n")

    def _bootstrap(self) -> None:
        config = ("--config-file", str(self.directory / "keystone.conf"))
        self._run("keystone-manage", *config, "db_sync")
        self._run("keystone-manage", *config, "fernet_setup", "--keystone-user", "root", "--keystone-group", "root")
        self._run("keystone-manage", *config, "bootstrap", "--bootstrap-password", _PASSWORD,
                  "--bootstrap-region-id", "R", "--bootstrap-public-url", self.keystone,
                  "--bootstrap-internal-url", self.keystone)
        self._launch("keystone", self._uwsgi(self.keystone_port, "keystone.wsgi.api:application"))
        eventually(self._signed_in, _START, f"Keystone responds {self._processes[-1].tail()}", interval=0.5)
        service = self._make("/projects", "project", name="service", domain_id="default")["id"]
        user = self._make("/users", "user", name="nova", password=_PASSWORD, domain_id="default")["id"]
        for role in self._identity("GET", "/roles")["roles"]:
            if role["name"] in ("admin", "service"):
                self._identity("PUT", f"/projects/{service}/users/{user}/roles/{role['id']}")
        kind = self._make("/services", "service", name="cinderv3", type="volumev3")["id"]
        self._make("/endpoints", "endpoint", service_id=kind, interface="public", region_id="R",
                   url=f"{self.url}/v3/%(project_id)s")

    def _signed_in(self) -> bool:
        wanted = {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": "admin", "domain": {"id": "default"}, "password": _PASSWORD}}},
            "scope": {"project": {"name": "admin", "domain": {"id": "default"}}}}}
        try:
            answer = requests.post(f"{self.keystone}/auth/tokens", json=wanted, timeout=60)
        except requests.RequestException:
            return False
        self._token = answer.headers.get("X-Subject-Token", "")
        return bool(self._token)

    def _make(self, path: str, kind: str, **values: Any) -> Any:
        return self._identity("POST", path, {kind: values})[kind]

    def _identity(self, method: str, path: str, body: Any = None) -> Any:
        answer = requests.request(method, f"{self.keystone}{path}", json=body, timeout=60,
                                  headers={"X-Auth-Token": self._token})
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def _up(self) -> bool:
        try:
            answer = requests.get(f"{self.url}/v3/os-services", timeout=60, headers={"X-Auth-Token": self._token})
        except requests.RequestException:
            return False
        services = answer.json()["services"] if answer.status_code == 200 else []
        return {each["binary"] for each in services if each["state"] == "up"} == {"cinder-scheduler", "cinder-volume"}

    def _uwsgi(self, port: int, module: str) -> list[str]:
        return [str(self.home / "bin" / "uwsgi"), "--http", f"127.0.0.1:{port}", "--http-keepalive",
                "--http-auto-chunked", "--master", "--enable-threads", "--threads", "4", "--lazy-apps",
                "--buffer-size", "65535", "--die-on-term", "--need-app", "--disable-logging", "--pyhome",
                str(self.home), "--module", module]

    def _launch(self, name: str, command: list[str]) -> None:
        process = Process(name, command, self.directory / f"{name}.log", env=self._env())
        process.start()
        self._processes.append(process)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([str(self.home / "bin" / program), *arguments], capture_output=True, text=True,
                              env={**os.environ, **self._env()}, timeout=600, check=False)
        assert done.returncode == 0, f"{program}: {done.stdout[-2000:]}{done.stderr[-3000:]}"

    def _env(self) -> dict[str, str]:
        return {"OS_KEYSTONE_CONFIG_DIR": str(self.directory), "PYTHONWARNINGS": "ignore",
                "PATH": f"{self.directory}/bin:{self.home}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"}


