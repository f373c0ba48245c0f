"""The processes of a guest as seen by nova-compute: its supervisor, its kernel, and the kernel's management socket.

The files that :mod:`nova.virt.uml.supervisor` writes identify processes by id, start time and boot id, and signals are
sent to open process file descriptors. A process that reused an id is never signalled."""

import contextlib
import fcntl
import logging
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

from nova import exception
from nova.common import files
from nova.virt.uml import supervisor

LOG = logging.getLogger(__name__)

# Timeouts in seconds for the answer to a management request, and for the end of killed processes.
ANSWER_TIMEOUT = 10.0
_KILL_TIMEOUT = 10.0
_POLL_INTERVAL = 0.02
_MAGIC, _VERSION = 0xCAFEBABE, 2
_REQUEST, _REPLY = struct.Struct("=III512s"), struct.Struct("=III")
_LOG_TAIL = 2000  # characters of the logs in the log line of a failed start
_MAX_ANSWER = 64 << 10  # bytes
_HELPER_SECONDS = 3.0  # maximum run time of a helper process of the booting kernel


@contextlib.contextmanager
def opened(place: str, name: str = supervisor.PID) -> Iterator[int | None]:
    """Yield a file descriptor of the process recorded in ``place``, or None if that process has ended."""
    recorded = files.text_of(os.path.join(place, name)) or ""
    descriptor = None
    try:
        with contextlib.suppress(OSError, ValueError):
            pid = int(recorded.split()[0]) if recorded else 0
            if pid:
                descriptor = os.pidfd_open(pid)
                if supervisor.identity(pid) != recorded or _ended(descriptor, 0):
                    os.close(descriptor)
                    descriptor = None
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_running(place: str) -> bool:
    with opened(place) as process:
        return process is not None


def kernel_pid(place: str) -> int | None:
    """Return the process id of the running kernel, which is also that of its process group; None if it has ended."""
    with opened(place, supervisor.KERNEL_PID) as process:
        return int((files.text_of(os.path.join(place, supervisor.KERNEL_PID)) or "0").split()[0]) if process else None


def start(uuid: str, place: str, timeout: float) -> None:
    """Start the supervisor. Return when the kernel responds or, if the file HOLD exists, is stopped before its first
    instruction. Raises NovaException and logs the reason; the caller then kills the started processes."""
    for name in (supervisor.EXIT, supervisor.STOP, supervisor.KERNEL_LOG):
        files.remove(os.path.join(place, name))
    shutil.rmtree(os.path.join(place, supervisor.RUN), ignore_errors=True)
    log = os.path.join(place, "supervisor.log")
    with open(log, "wb") as output:
        process = subprocess.Popen([sys.executable, "-I", "-S", supervisor.__file__, place], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, cwd="/", start_new_session=True, env={})
    held = os.path.exists(os.path.join(place, supervisor.HOLD))
    deadline = time.monotonic() + timeout
    while not (_is_stopped(place) if held else _responds(place)):
        if process.poll() or (process.returncode == 0 and not _has_supervisor(place)) or time.monotonic() > deadline:
            reason = _reason(place, log)
            LOG.error("[instance: %s] The User Mode Linux kernel did not start, the operation fails: %s", uuid, reason)
            raise exception.NovaException("The User Mode Linux kernel of the guest did not start.")
        time.sleep(_POLL_INTERVAL)
    process.wait(_KILL_TIMEOUT)  # The started process has exited; the supervisor is its child.


def _is_stopped(place: str) -> bool:
    """Return True if the kernel is stopped by a signal. A SIGCONT that is sent before the stop has no effect."""
    pid = kernel_pid(place)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False


def _reason(place: str, log: str) -> str:
    text = ""
    for path in (log, os.path.join(place, supervisor.KERNEL_LOG)):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text[-_LOG_TAIL:].strip() or "no message"


def _responds(place: str) -> bool:
    try:
        with management_socket(place, 0.5) as query:
            query("version")
        return True
    except (OSError, RefusedByKernel):
        return False


def kill(place: str, uid: int | None) -> None:
    """End the supervisor and all processes of the guest. ``uid``: the user of the guest (None: that of this process).
    Succeeds if no process runs."""
    with opened(place) as process:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGTERM)
            if not _ended(process, _KILL_TIMEOUT):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                _ended(process, _KILL_TIMEOUT)
    deadline = time.monotonic() + _KILL_TIMEOUT
    while _has_supervisor(place) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    _kill_remains(place, uid)
    files.remove(*(os.path.join(place, name) for name in (supervisor.PID, supervisor.KERNEL_PID)))


def _has_supervisor(place: str) -> bool:
    """Return True if a supervisor holds the lock of the guest, also before it records its process id."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(place, supervisor.LOCK), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _kill_remains(place: str, uid: int | None) -> None:
    """Kill processes left by a supervisor that was killed: those of the guest's user, and those with the directory of
    the guest as their working directory."""
    if files.text_of(os.path.join(place, supervisor.KERNEL_PID)) is None:
        return  # The supervisor ended by itself, after all its descendants.
    if uid:
        # A single kill(-1): the host's kernel signals all processes of the user, so that none escapes by forking.
        subprocess.run(["sh", "-c", "kill -9 -1"], user=uid, group=uid, extra_groups=[], cwd="/", env={},
                       timeout=_KILL_TIMEOUT, check=False)
    mine = os.stat(place)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                if os.path.samestat(os.stat(f"/proc/{pid}/cwd"), mine):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def users() -> set[int]:
    """Return the ids of the users that have processes on the host."""
    ids: set[int] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # Read the status: the owner of /proc/PID may be root instead of the user (a process can hide its user there).
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith(("State:", "Uid:")))
            if "Z" not in fields["State"].split()[0]:
                ids.update(map(int, fields["Uid"].split()))
    return ids


def wait_for_end(place: str, timeout: float) -> bool:
    """Wait until the supervisor ends; return False after ``timeout`` seconds."""
    with opened(place) as process:
        return process is None or _ended(process, timeout)


def _ended(process: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def resume(place: str) -> None:
    """Continue a kernel that is stopped before its first instruction."""
    with opened(place, supervisor.KERNEL_PID) as process:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)


# --- the management console ----------------------------------------------------------------------------
class ManagementSocket:
    """A connection to the management console ("mconsole") of a kernel."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def __call__(self, command: str) -> str:
        """Send a command and return its output. Raises OSError (no complete answer, timeout), RefusedByKernel."""
        request = command.encode()
        if len(request) > 511:
            raise exception.InvalidInput(reason="the request is too long for the kernel of the guest")
        deadline = time.monotonic() + (self._socket.gettimeout() or ANSWER_TIMEOUT)
        self._socket.send(_REQUEST.pack(_MAGIC, _VERSION, len(request), request))
        text = b""
        more = 1
        while more:
            reply = self._socket.recv(8192)
            # An attacker who controls the kernel could send an endless answer.
            if len(reply) < _REPLY.size or len(text) > _MAX_ANSWER or time.monotonic() > deadline:
                raise OSError("the answer is malformed or endless")
            failed, more, length = _REPLY.unpack_from(reply)
            text += reply[_REPLY.size:_REPLY.size + length]
        output = text.rstrip(b"\0").decode("utf-8", "replace")
        if failed:
            raise RefusedByKernel(output)
        return output


class RefusedByKernel(Exception):
    """A request that the kernel of a guest answered with an error."""


@contextlib.contextmanager
def management_socket(place: str, timeout: float = ANSWER_TIMEOUT) -> Iterator[ManagementSocket]:
    """Connect to the management console of the guest's kernel. Raises OSError. The guest's user owns the directory of
    the socket: a link to the socket of another guest is refused."""
    path = os.path.join(place, supervisor.RUN, supervisor.UMID, "mconsole")
    entry = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(entry)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.stat(os.path.join(place, supervisor.RUN)).st_uid:
            raise OSError(f"{path} is not the socket of the guest")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout)
            sock.bind("")  # an address chosen by the kernel of the host
            sock.connect(f"/proc/self/fd/{entry}")
            yield ManagementSocket(sock)
    finally:
        os.close(entry)


def change_devices(uuid: str, place: str, command: str, timeout: float) -> None:
    """Send a request that adds or removes a device. Waits up to ``timeout`` seconds until the kernel has started init,
    since an earlier request may crash the kernel. Raises GuestNotRunning (no answer), RefusedByKernel."""
    started = time.monotonic()
    first = _user_processes(kernel_pid(place))
    while not os.path.exists(os.path.join(place, supervisor.BOOTED)):
        time.sleep(_POLL_INTERVAL * 5)
        first = first or _user_processes(kernel_pid(place))
        waited = time.monotonic() - started
        # Boot helpers end earlier: an older process means that init runs, even if a quiet kernel logs nothing.
        if waited > _HELPER_SECONDS and first & _user_processes(kernel_pid(place)):
            break
        if waited > timeout:
            raise RefusedByKernel("the guest is still booting")
    request(uuid, place, command)


def _user_processes(kernel: int | None) -> set[int]:
    """Return the ids of the host processes in which the kernel runs processes of the guest: the children it traces."""
    traced = set()
    try:
        with open(f"/proc/{kernel}/task/{kernel}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return set()
    for child in children:
        with contextlib.suppress(OSError), open(f"/proc/{child}/status", encoding="ascii", errors="replace") as file:
            if f"TracerPid:\t{kernel}\n" in file.read():
                traced.add(int(child))
    return traced


def request(uuid: str, place: str, command: str) -> str:
    """Send one command to the kernel of a running guest; return the answer. Raises GuestNotRunning (no answer),
    RefusedByKernel."""
    try:
        with management_socket(place) as query:
            return query(command)
    except OSError as error:
        LOG.warning("[instance: %s] The kernel of the guest does not answer \"%s\": %s", uuid, command, error)
        raise exception.GuestNotRunning(instance_uuid=uuid) from error


def wait_for_restart(place: str, before: int, timeout: float) -> bool:
    """Wait until a new kernel responds, with another process id than ``before``. Return False after ``timeout``
    seconds, or if the guest ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and is_running(place):
        if kernel_pid(place) not in (None, before) and _responds(place):
            return True
        time.sleep(_POLL_INTERVAL * 5)
    return False
