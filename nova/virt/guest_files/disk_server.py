"""Server and client that transfer the files of a stopped guest to the host to which the guest moves.

One qemu-storage-daemon per guest serves all its files, read-only, over NBD with TLS and a key made for this move. The
daemon is not a child process of nova-compute: it survives a restart and is identified by its pid file."""

import contextlib
import json
import logging
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.servers.moves import DiskSource
from nova.virt.guest_files import peers
from nova.virt.images import qemuimg

LOG = logging.getLogger(__name__)

_USER = "nova"
_SERVED = "served.json"
_START_TIMEOUT = 30  # seconds
_STOP_TIMEOUT = 10.0  # seconds after SIGTERM until the daemon is killed


def serve(uuid: str, served: Sequence[tuple[str, str]], host: str) -> DiskSource:
    """Serve files, given as (name, path), until stop(). Keep a running server of these files. Raises MigrationError."""
    place = _place(uuid)
    running = _running(uuid, served, host)
    if running is not None:
        return running
    stop(uuid)
    os.makedirs(place, mode=0o700)
    key = secrets.token_hex(32)
    files.replace(os.path.join(place, "keys.psk"), f"{_USER}:{key}\n")
    address = CONF.libvirt.migration_inbound_addr
    low, high = ports()
    choice = list(range(low, high + 1))
    random.shuffle(choice)
    reason = "no port is free"
    for port in choice:
        try:
            _start(place, address, port, served)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or "").strip()
            if "in use" in reason:
                continue
            break
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            break
        files.replace(os.path.join(place, _SERVED), json.dumps([address, port, list(served)]))
        return DiskSource(host=host, address=address, port=port, key=key)
    stop(uuid)
    LOG.error("[instance: %s] Cannot serve the disks on %s, the migration fails: %s", uuid, address, reason)
    raise exception.MigrationError(reason="the source host cannot serve the disks")


def stop(uuid: str) -> None:
    """Stop the server of a guest's files and remove its key. Succeeds if no server runs."""
    place = _place(uuid)
    pid = _pid(place)
    if pid is not None:
        deadline = time.monotonic() + _STOP_TIMEOUT
        number = signal.SIGTERM
        while _pid(place) == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            time.sleep(0.05)
    shutil.rmtree(place, ignore_errors=True)


def ports() -> tuple[int, int]:
    """Return the range of ports, [libvirt] move_ports. Raises InvalidInput."""
    low, _, high = CONF.libvirt.move_ports.partition("-")
    with contextlib.suppress(ValueError):
        if 0 < int(low) <= int(high or low) < 1 << 16:
            return int(low), int(high or low)
    raise exception.InvalidInput(reason=f"[libvirt]move_ports {CONF.libvirt.move_ports}: not of the form first-last")


def fetch(uuid: str, source: DiskSource, name: str, length: int, path: str) -> None:
    """Copy a served file to a sparse file. Raises MigrationError (also if it exceeds ``length`` bytes), DiskFull."""
    image = ",".join(["driver=nbd", f"server.host={peers.address(source.address)}", "server.type=inet",
                      f"server.port={source.port}", f"export={name}", "tls-creds=tls", "open-timeout=10"])
    # NBD serves whole sectors of 512 bytes: the copy is rounded up, and truncated at the end.
    whole = -(-length // 512) * 512
    with open(path, "wb") as file:
        file.truncate(whole)
    if not length:
        return
    with _client(uuid, source.key) as credentials:
        try:
            qemuimg.run(["qemu-img", "convert", "-n", "--target-is-zero", "--object", credentials, "--image-opts",
                         "-O", "raw", image, path], qemuimg.COPY_TIMEOUT, length=whole)
        except exception.InvalidDiskInfo as error:
            raise exception.MigrationError(reason=f"{name} could not be copied: {error.kwargs['reason']}") from error
    # qemu-img does not flush the file to the device.
    with open(path, "r+b") as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _place(uuid: str) -> str:
    return os.path.join(CONF.state_path, "moves", uuid)


def _running(uuid: str, pairs: Sequence[tuple[str, str]], host: str) -> DiskSource | None:
    """Return the running disk server for exactly these (name, path) pairs, or None."""
    place = _place(uuid)
    if _pid(place) is None:
        return None
    try:
        address, port, served = json.loads(files.text_of(os.path.join(place, _SERVED)) or "")
    except ValueError:
        return None  # nova-compute was killed after it had started the daemon, before it had stored the port
    key = (files.text_of(os.path.join(place, "keys.psk")) or "").strip().partition(":")[2]
    same = key and served == [list(pair) for pair in pairs]
    return DiskSource(host=host, address=address, port=port, key=key) if same else None


def _pid(place: str) -> int | None:
    """Return the pid of the running daemon of this directory, or None."""
    try:
        pid = int(files.text_of(os.path.join(place, "pid")) or "")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return pid if os.path.join(place, "pid").encode() in file.read().split(b"\0") else None
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None


def _start(place: str, address: str, port: int, pairs: Sequence[tuple[str, str]]) -> None:
    command = ["qemu-storage-daemon", "--daemonize", "--pidfile", os.path.join(place, "pid"),
               "--object", f"tls-creds-psk,id=tls,endpoint=server,dir={place}",
               "--nbd-server", f"addr.type=inet,addr.host={address},addr.port={port},tls-creds=tls,max-connections=0"]
    for number, (name, path) in enumerate(pairs):
        command += ["--blockdev", f"driver=file,node-name=file{number},read-only=on,locking=off,"
                                  f"filename={path.replace(',', ',,')}",
                    "--export", f"type=nbd,id=export{number},node-name=file{number},name={name.replace(',', ',,')}"]
    subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                   timeout=_START_TIMEOUT, env={**os.environ, "LC_ALL": "C"})


@contextlib.contextmanager
def _client(uuid: str, key: str) -> Iterator[str]:
    """Yield the credentials of one copy, in a directory that only this user can read."""
    place = _place(uuid) + ".in"
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place, mode=0o700)
    try:
        files.replace(os.path.join(place, "keys.psk"), f"{_USER}:{key}\n")
        yield f"tls-creds-psk,id=tls,endpoint=client,dir={place},username={_USER}"
    finally:
        shutil.rmtree(place, ignore_errors=True)
