"""A private Barbican from the virtual environment NOVA_TEST_BARBICAN, which has barbican and uwsgi."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import requests
from cryptography.fernet import Fernet

from tests.integration.processes import Process, eventually, free_port

HOME = os.environ.get("NOVA_TEST_BARBICAN")
needs_barbican = pytest.mark.skipif(
    not HOME, reason="needs Barbican (NOVA_TEST_BARBICAN names its virtual environment)")

_WSGI = """
from paste import deploy
from barbican.common import config
application = deploy.loadapp("config:{paste}", name="main")
"""


class Barbican:
    """A Barbican API with its own database. ``identity`` is its [keystone_authtoken].

    stop() ends all its processes. ``directory`` is created if it is missing.
    """

    def __init__(self, directory: pathlib.Path, identity: Mapping[str, Any]) -> None:
        self.home, self.directory, self.port = pathlib.Path(HOME or "/"), directory, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = directory / ".barbican"
        settings.mkdir(parents=True)
        sections = {
            "DEFAULT": {"host_href": self.url, "db_auto_create": True},
            "database": {"connection": f"sqlite:///{directory}/barbican.sqlite"},
            "simple_crypto_plugin": {"kek": Fernet.generate_key().decode()},
            "queue": {"enable": False}, "oslo_policy": {"enforce_scope": False},
            "keystone_authtoken": identity}
        (settings / "barbican.conf").write_text("".join(
            f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
            for section, values in sections.items()))
        paste = self.home / "etc/barbican/barbican-api-paste.ini"
        (directory / "barbican_app.py").write_text(_WSGI.format(paste=paste))
        self._process = Process("barbican", [
            str(self.home / "bin/uwsgi"), "--http", f"127.0.0.1:{self.port}", "--http-keepalive", "--http-auto-chunked",
            "--master", "--enable-threads", "--lazy-apps", "--buffer-size", "65535", "--die-on-term", "--need-app",
            "--disable-logging", "--pyhome", str(self.home), "--pythonpath", str(directory),
            "--module", "barbican_app"],
            directory / "barbican.log", env=self._env())

    def start(self) -> None:
        done = subprocess.run([str(self.home / "bin/barbican-manage"), "db", "upgrade"], capture_output=True, text=True,
                              env={**os.environ, **self._env()}, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
        self._process.start()
        eventually(self._answers, 120, f"Barbican responds {self._process.tail()}", interval=0.5)

    def stop(self) -> None:
        self._process.kill()

    def _answers(self) -> bool:
        try:
            return requests.get(self.url, timeout=30).status_code in (200, 300)
        except requests.RequestException:
            return False

    def _env(self) -> dict[str, str]:
        return {"HOME": str(self.directory), "PYTHONWARNINGS": "ignore"}
