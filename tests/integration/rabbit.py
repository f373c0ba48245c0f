"""A private RabbitMQ with its own node name, ports, data and epmd, all on loopback.

Needs the Debian package rabbitmq-server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import amqp
import pytest

from tests.integration.processes import Process, eventually, free_port

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
# Created when the node starts, so that tests need not wait for rabbitmqctl. Each takes CPU time also while it is idle:
# brokers with 50 took twice as much as brokers with 16, which suffice for a worker of pytest-xdist.
_VHOSTS = 16
_USER, _PASSWORD = "nova", "nova"


class Rabbit:
    """A broker with a supply of vhosts. ``kill`` simulates a crash; ``start`` restarts it with its data.

    ``plugins`` are enabled; ``settings`` are further lines of rabbitmq.conf.
    """

    def __init__(self, directory: pathlib.Path, plugins: Sequence[str] = (), settings: str = "") -> None:
        self.port = free_port()
        user = "rabbitmq" if os.geteuid() == 0 and _has_user("rabbitmq") else None
        self._epmd, self._server, self._env = _processes(directory, self.port, user)
        self._user = user
        (directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        with (directory / "rabbitmq.conf").open("a") as file:
            file.write(settings)
        if user:
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, user, user)
        self._numbers = itertools.count()

    @property
    def pid(self) -> int:
        """Return the PID of the server."""
        return self._server.pid

    def new_vhost(self) -> str:
        """Return the transport URL of an unused vhost."""
        number = next(self._numbers)
        if number >= _VHOSTS:
            self.control("add_vhost", f"t{number}")
            self.control("set_permissions", "-p", f"t{number}", _USER, ".*", ".*", ".*")
        return f"rabbit://{_USER}:{_PASSWORD}@127.0.0.1:{self.port}/t{number}"

    def start(self) -> None:
        """Start the broker and wait until it accepts clients."""
        if not self._epmd.running():
            self._epmd.start()
        self._server.start()
        eventually(self._answers, 180, f"RabbitMQ accepts clients\n{self._server.tail()}", interval=0.2)

    def kill(self) -> None:
        """Send SIGKILL, as if the machine had lost power."""
        self._server.kill()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the broker with SIGSTOP during the block: its sockets stay open, but it does not answer."""
        self._server.freeze()
        try:
            yield
        finally:
            self._server.thaw()

    def stop(self) -> None:
        self._server.kill()  # kill, because a graceful shutdown takes seconds and the data are not needed
        self._epmd.kill()

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl, which must succeed."""
        done = subprocess.run([_CONTROL, *arguments], env={**os.environ, **self._env}, user=self._user, cwd="/",
                              capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextlib.contextmanager
    def alarm(self) -> Iterator[None]:
        """Raise the broker's memory alarm during the block, so that it blocks publishers."""
        self.control("set_vm_memory_high_watermark", "0.00001")
        try:
            yield
        finally:
            self.control("set_vm_memory_high_watermark", "0.4")

    def _answers(self) -> bool:
        if not self._server.running():
            pytest.fail(f"RabbitMQ ended:\n{self._server.tail()}")
        try:
            with amqp.Connection(f"127.0.0.1:{self.port}", userid=_USER, password=_PASSWORD,
                                 virtual_host=f"t{_VHOSTS - 1}", connect_timeout=2):
                return True
        except (OSError, amqp.AMQPError):
            return False


def _processes(directory: pathlib.Path, port: int, user: str | None) -> tuple[Process, Process, dict[str, str]]:
    epmd_port, distribution_port = free_port(), free_port()
    definitions = directory / "definitions.json"
    vhosts = [f"t{number}" for number in range(_VHOSTS)]
    definitions.write_text(json.dumps({
        "rabbit_version": "3.10.8", "vhosts": [{"name": name} for name in vhosts],
        "users": [{"name": _USER, "password": _PASSWORD, "tags": ["administrator"]}],
        "permissions": [{"user": _USER, "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
                        for name in vhosts]}))
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nload_definitions = {definitions}\nlog.console = true\n"
        "log.console.level = warning\nlog.file = false\ndisk_free_limit.absolute = 50MB\n")
    env = {
        "HOME": str(directory), "RUNNING_UNDER_SYSTEMD": "1",  # runs Erlang in place of the shell
        "RABBITMQ_NODENAME": f"nova-test-{port}@localhost", "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"), "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"), "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"), "RABBITMQ_LOGS": "-",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(epmd_port),
    }
    epmd = Process("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], directory / "epmd.log",
                   env=env, user=user)
    return epmd, Process("rabbitmq", [_SERVER], directory / "rabbitmq.log", env=env, user=user), env


def _has_user(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


@contextlib.contextmanager
def start_rabbitmq(plugins: Sequence[str] = (), settings: str = "") -> Iterator[Rabbit]:
    """Start a broker, and remove it with its data at the end; see :class:`Rabbit`."""
    for program in (_SERVER, "epmd"):
        if not shutil.which(program):
            pytest.skip(f"RabbitMQ's server is not installed ({program})")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nova-rabbitmq-", dir="/tmp"))
    directory.chmod(0o755)
    rabbit = Rabbit(directory, plugins, settings)
    try:
        rabbit.start()
        yield rabbit
    finally:
        rabbit.stop()
        shutil.rmtree(directory, ignore_errors=True)
