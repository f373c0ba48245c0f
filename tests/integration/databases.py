"""Private database servers for tests, with their own data directory and loopback port, removed at the end.

Import the fixtures ``postgresql`` and ``mariadb`` (one server per test session), or use :func:`start_postgresql` and
:func:`start_mariadb` as context managers. Needs root (the servers run as the users postgres and mysql) and the servers'
Debian packages; skips tests where these are absent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from tests.integration.processes import free_port

_WAIT = 60.0
# Free memory in bytes that a database in memory requires.
_ROOM = 3 * 2**30


@dataclasses.dataclass
class Server:
    """A running server on a loopback ``port``. ``admin_url`` gives access to all databases; ``log`` is the server's
    output."""

    kind: str
    port: int
    admin_url: str
    command: list[str]
    user: str
    log: pathlib.Path
    process: subprocess.Popen[bytes]
    numbers: Iterator[int]

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"nova_test_{next(self.numbers)}"
        self._run(f"CREATE DATABASE {name}" + (" CHARACTER SET utf8mb4" if self.kind == "mariadb" else ""))
        return self.url(name)

    def url(self, name: str) -> str:
        return sa.make_url(self.admin_url).set(database=name).render_as_string(hide_password=False)

    def kill(self) -> None:
        """Kill the database as a power failure would."""
        self.process.kill()
        self.process.wait(30)

    def restart(self) -> None:
        """Start the server again after :meth:`kill`, with the same data and port."""
        self.process = _launch(self.command, self.user, self.log)
        # PostgreSQL's other processes exit a moment after the first one; until then the server refuses to start.
        self.wait(again=True)

    def wait(self, again: bool = False) -> None:
        """Wait until the server answers. ``again``: restart it if it exits."""
        deadline = time.monotonic() + _WAIT
        while True:
            try:
                self._run("SELECT 1")
                return
            except sa.exc.DBAPIError:
                ended = self.process.poll() is not None
                if time.monotonic() > deadline or (ended and not again):
                    pytest.fail(f"{self.kind} does not answer:\n{self.log.read_text()[-3000:]}")
                time.sleep(0.1)
                if ended:
                    self.process = _launch(self.command, self.user, self.log)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT if self.kind == "postgresql" else signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _run(self, statement: str) -> None:
        engine = sa.create_engine(self.admin_url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(statement))


@contextlib.contextmanager
def start_postgresql(*options: str) -> Iterator[Server]:
    """Start PostgreSQL. ``options`` are appended to its command line."""
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    initdb = shutil.which("initdb", path=":".join(programs[-1:]))
    _require(initdb, "PostgreSQL's server (initdb)")

    def prepare(base: pathlib.Path, port: int) -> list[str]:
        _check([str(initdb), "-D", str(base / "data"), "-A", "trust", "-U", "nova", "-E", "UTF8", "--locale=C.UTF-8",
                "--no-sync"], "postgres")
        return [os.path.join(programs[-1], "postgres"), "-D", str(base / "data"), "-p", str(port), "-h", "127.0.0.1",
                "-k", str(base), "-c", "fsync=off", "-c", "max_connections=300", "-c", "max_wal_size=128MB",
                *options]

    with _server("postgresql", "postgres", prepare,
                 lambda base, port: f"postgresql+psycopg2://nova@127.0.0.1:{port}/postgres") as server:
        yield server


@contextlib.contextmanager
def start_pgbouncer(server: Server, mode: str, *settings: str) -> Iterator[Server]:
    """Start PgBouncer before PostgreSQL; ``mode``: its pool_mode. ``settings`` are further lines of its file."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    _require(program, "PgBouncer (pgbouncer)")

    def prepare(base: pathlib.Path, port: int) -> list[str]:
        (base / "ini").write_text("\n".join([
            "[databases]", f"* = host=127.0.0.1 port={server.port} user=nova", "[pgbouncer]",
            "listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir =", "auth_type = any",
            f"pool_mode = {mode}", *settings]))
        return [str(program), str(base / "ini")]

    with _server("pgbouncer", "postgres", prepare,
                 lambda base, port: f"postgresql+psycopg2://nova@127.0.0.1:{port}/postgres") as proxy:
        yield proxy


@contextlib.contextmanager
def start_mariadb(*options: str) -> Iterator[Server]:
    """Start MariaDB. ``options`` are appended to its command line."""
    server_program, install = shutil.which("mariadbd", path="/usr/sbin:/usr/bin"), shutil.which("mariadb-install-db")
    _require(server_program and install, "MariaDB's server (mariadbd, mariadb-install-db)")

    def prepare(base: pathlib.Path, port: int) -> list[str]:
        # A starting server removes all temporary tables in its tmpdir, also those of other servers.
        places = (f"--datadir={base}/data", f"--tmpdir={base}")
        _check([str(install), "--no-defaults", "--user=mysql", *places, "--skip-test-db",
                "--auth-root-authentication-method=normal"], "mysql")
        return [str(server_program), "--no-defaults", *places, f"--socket={base}/socket",
                f"--pid-file={base}/pid", f"--port={port}", "--bind-address=127.0.0.1",
                "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M",
                "--max-connections=300", *options]

    with _server("mariadb", "mysql", prepare,
                 lambda base, port: f"mysql+pymysql://root@localhost/mysql?unix_socket={base}/socket") as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with start_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with start_mariadb() as server:
        yield server


@contextlib.contextmanager
def _server(kind: str, user: str, prepare: Callable[[pathlib.Path, int], list[str]],
            url: Callable[[pathlib.Path, int], str]) -> Iterator[Server]:
    if os.geteuid() != 0:
        pytest.skip(f"{kind} is started as user {user}: needs root")
    # A short path, because socket names have at most 107 bytes; in memory if there is enough, for speed.
    in_memory = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > _ROOM
    base = pathlib.Path(tempfile.mkdtemp(prefix=f"nova-{kind}-", dir="/dev/shm" if in_memory else "/tmp"))
    shutil.chown(base, user)
    server = None
    try:
        port = free_port()
        command = prepare(base, port)
        log = base / "log"
        server = Server(kind, port, url(base, port), command, user, log, _launch(command, user, log),
                        itertools.count(1))
        server.wait()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(base, ignore_errors=True)


def _launch(command: list[str], user: str, log: pathlib.Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(command, user=user, group=user, extra_groups=[], stdin=subprocess.DEVNULL,
                                stdout=output, stderr=subprocess.STDOUT, cwd="/", start_new_session=True)


def _check(command: list[str], user: str) -> None:
    done = subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/", timeout=300, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        pytest.fail(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')[-3000:]}")


def _require(found: object, what: str) -> None:
    if not found:
        pytest.skip(f"{what} is not installed")
