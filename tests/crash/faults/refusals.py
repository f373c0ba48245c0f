"""Databases that respond but refuse writes: read-only servers, full disks, terminated sessions.

Each function is a context manager: writes are refused inside the block, and accepted again after it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import sqlalchemy as sa

from tests.crash.faults.chaos import cut_connections
from tests.integration.databases import Server
from tests.integration.processes import eventually


def execute(url: str, *statements: str) -> None:
    """Run statements outside of a transaction."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def ordinary_account(server: Server, url: str) -> str:
    """Return ``url`` with an ordinary account, since a read-only MariaDB accepts writes of root."""
    if server.kind == "postgresql":
        return url
    name = sa.make_url(url).database
    execute(server.admin_url, "CREATE USER IF NOT EXISTS plain@localhost IDENTIFIED BY 'plain'",
            f"GRANT ALL ON {name}.* TO plain@localhost")
    return sa.make_url(url).set(username="plain", password="plain").render_as_string(hide_password=False)


@contextlib.contextmanager
def read_only(server: Server, url: str, terminate: bool = False) -> Iterator[None]:
    """Make the server read-only, as after a failover; ``terminate`` ends its sessions, too."""
    if server.kind == "mariadb":
        on, off = ["SET GLOBAL read_only = 1"], ["SET GLOBAL read_only = 0"]
    else:
        on, off = (["SET default_transaction_read_only = off",
                    f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()"]
                   for value in ("on", "off"))
    execute(server.admin_url, *on)
    if server.kind == "postgresql":  # its processes read the configuration with a delay
        eventually(lambda: _is_read_only(url), 30, "the server is read only", interval=0.05)
    try:
        if terminate and server.kind == "postgresql":
            cut_connections(server, url)
        yield
    finally:
        execute(server.admin_url, *off)


def _is_read_only(url: str) -> bool:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return bool(connection.scalar(sa.text("SHOW transaction_read_only")) == "on")


@contextlib.contextmanager
def small_disk(mebibytes: int) -> Iterator[pathlib.Path]:
    """Mount a file system of this size; return its directory."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nova-small-", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0777", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


@contextlib.contextmanager
def full(directory: pathlib.Path) -> Iterator[None]:
    """Fill the file system of ``directory``."""
    ballast = directory / "ballast"
    try:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * os.statvfs(directory).f_bsize)
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def mounted_read_only(directory: pathlib.Path) -> Iterator[None]:
    """Remount the file system of ``directory`` read-only, as after a disk error."""
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(directory)], check=True)
