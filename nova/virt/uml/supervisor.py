"""The supervisor of one User Mode Linux guest: a separate process that survives restarts of nova-compute.

::

    python -I -S supervisor.py DIRECTORY

It runs the guest kernel as an unprivileged user, starts it again when the guest reboots, and owns the serial console:
output goes to a log of bounded size and to connected clients. It reads DIRECTORY/guest.json before each start of the
kernel. It ends with the guest, and the kernel never runs without a supervisor. The module imports only the standard
library, to save memory: each guest has such a process.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import sys
import traceback

# Files in the directory of a guest.
DEFINITION = "guest.json"
PID = "supervisor.pid"  # "PID START_TIME BOOT_ID" of the supervisor
LOCK = "supervisor.lock"  # locked while the guest has a supervisor
KERNEL_PID = "kernel.pid"  # "PID START_TIME BOOT_ID" of the kernel, which is also its process group
KERNEL_LOG = "kernel.log"  # messages of the kernel before it has a console, and errors of its start
CONSOLE_LOG = "console.log"
CONSOLE_SOCKET = "console.sock"
EXIT = "exit"  # exit code of the kernel, negative: the number of a signal
STOP = "stop"  # exists: the guest stays off instead of rebooting
BOOTED = "booted"  # exists: the kernel has started init
HOLD = "hold"  # exists: the kernel is stopped (SIGSTOP) before its first instruction
RUN = "run"  # directory of the kernel's management socket, RUN/UMID/mconsole
UMID = "guest"

# A kernel that reboots executes its argv[0]. This program, as argv[0], then ends with the exit code 1.
REBOOT_PROGRAM, REBOOTED = "/bin/false", 1
_SETUP_FAILED = 125

_INIT_MESSAGE = b" as init process"  # printed by the kernel when it starts init
_LOG_LIMIT = 1 << 20  # bytes, see ConsoleLog
_CLIENTS = 8  # maximum number of connected console clients; more connections are closed
_CONSOLE = 3  # file descriptor of the console in the kernel's process
_CLONE_NEWNS, _MS_NOSUID, _MS_REC, _MS_PRIVATE = 0x20000, 2, 0x4000, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_TUN = os.makedev(10, 200)


def identity(pid: int) -> str:
    """Return the process id with the start time and the boot id, which no other process ever has. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        started = file.read().rpartition(")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{pid} {started} {file.read().strip()}"


def write(name: str, content: str) -> None:
    """Replace a small file in the current directory atomically."""
    with open(f"{name}.new", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(f"{name}.new", name)


class ConsoleLog:
    """The log of the console. When it is twice as long as ``limit``, its older half is dropped."""

    def __init__(self, limit: int = _LOG_LIMIT) -> None:
        self._limit = limit
        self._file = open(CONSOLE_LOG, "ab+", buffering=0)  # noqa: SIM115

    def append(self, data: bytes) -> None:
        self._file.write(data)
        if self._file.tell() <= 2 * self._limit:
            return
        self._file.seek(-self._limit, os.SEEK_END)
        tail = self._file.read()
        with open(f"{CONSOLE_LOG}.new", "wb") as file:
            file.write(tail)
        os.replace(f"{CONSOLE_LOG}.new", CONSOLE_LOG)
        self._file.close()
        self._file = open(CONSOLE_LOG, "ab+", buffering=0)  # noqa: SIM115


class Supervisor:
    """The supervisor of the guest whose directory is the current directory."""

    def __init__(self) -> None:
        self._log = ConsoleLog()
        self._selector = selectors.DefaultSelector()
        self._clients: set[socket.socket] = set()
        self._kernel = 0
        self._stopping = False
        self._end_of_output: bytes | None = b""  # searched for _INIT_MESSAGE; None: the kernel has started init
        # When the kernel ends, its helper processes become children of this process instead of init.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, self._terminate)

    def run(self) -> None:
        """Run the kernel until the guest powers off or is stopped; record its exit code."""
        settings = _definition()
        _unlink(CONSOLE_SOCKET)
        self._listen(socket.AF_UNIX, CONSOLE_SOCKET)
        if settings.get("serial"):
            host, port = settings["serial"]
            self._listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
        code = 0
        while not self._stopping:
            code = self._run_kernel(_definition())
            if code != REBOOTED or os.path.exists(STOP):
                break
        write(EXIT, str(0 if code == REBOOTED or self._stopping else code))

    def _listen(self, family: int, address: object) -> None:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        old = os.umask(0o177)
        listener.bind(address)  # type: ignore[arg-type]
        os.umask(old)
        listener.listen()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "listener")

    def _terminate(self, _number: int, _frame: object) -> None:
        self._stopping = True
        self._kill()

    def _kill(self) -> None:
        """Kill the kernel, its helpers and the processes of the guest, which are in one process group."""
        if self._kernel:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._kernel, signal.SIGKILL)  # its process group may not exist yet
                os.killpg(self._kernel, signal.SIGKILL)

    def _run_kernel(self, settings: dict) -> int:  # type: ignore[type-arg]
        """Run the kernel once; return its exit code, negative: the number of a signal."""
        console, inner = socket.socketpair()
        _unlink(BOOTED)
        self._end_of_output = b""
        uid = settings.get("uid")
        os.makedirs(RUN, mode=0o700, exist_ok=True)
        if uid is not None:
            os.chown(RUN, uid, uid)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_kernel(settings, inner, parent)
        inner.close()
        self._kernel = pid
        if self._stopping:
            self._kill()
        write(KERNEL_PID, identity(pid))
        console.setblocking(False)
        ended = os.pidfd_open(pid)
        self._selector.register(console, selectors.EVENT_READ, "console")
        self._selector.register(ended, selectors.EVENT_READ, "end")
        try:
            self._serve(console)
        finally:
            self._selector.unregister(ended)
            os.close(ended)
            self._selector.unregister(console)
            self._kill()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._kernel = 0
            _reap()
            self._read_console(console)
            console.close()
            os.unlink(KERNEL_PID)
        return code

    def _serve(self, console: socket.socket) -> None:
        """Transfer data between the console, its log and its clients until the kernel ends."""
        while True:
            for key, _events in self._selector.select():
                if key.data == "end":
                    return
                if key.data == "console":
                    self._read_console(console)
                elif key.data == "listener":
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._read_client(key.fileobj, console)  # type: ignore[arg-type]

    def _read_console(self, console: socket.socket) -> None:
        try:
            while data := console.recv(1 << 16):
                self._log.append(data)
                if self._end_of_output is not None:
                    self._end_of_output += data
                    booted = _INIT_MESSAGE in self._end_of_output
                    self._end_of_output = None if booted else self._end_of_output[-len(_INIT_MESSAGE):]
                    if booted:
                        write(BOOTED, "")
                for client in tuple(self._clients):
                    try:
                        client.sendall(data)
                    except OSError:  # A client that reads too slowly is disconnected.
                        self._close(client)
        except OSError:
            pass  # nothing to read until the next event

    def _accept(self, listener: socket.socket) -> None:
        try:
            client = listener.accept()[0]
        except OSError:
            return
        if len(self._clients) >= _CLIENTS:
            client.close()
            return
        client.setblocking(False)
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ, "client")

    def _read_client(self, client: socket.socket, console: socket.socket) -> None:
        try:
            data = client.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(client)
            return
        with contextlib.suppress(OSError):  # A guest that does not read its console loses input, as on a serial line.
            console.send(data)

    def _close(self, client: socket.socket) -> None:
        self._clients.discard(client)
        self._selector.unregister(client)
        client.close()


def _unlink(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


def _reap() -> None:
    """Kill and wait for all descendants, including those that left the kernel's process group: when their parents end,
    they become children of this process."""
    with contextlib.suppress(ChildProcessError):
        while True:
            with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:
                for child in file.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


def _definition() -> dict:  # type: ignore[type-arg]
    with open(DEFINITION, encoding="utf-8") as file:
        return dict(json.load(file))


def _become_kernel(settings: dict, console: socket.socket, parent: int) -> None:  # type: ignore[type-arg]
    """Drop all privileges and execute the kernel. Never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(KERNEL_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(console.fileno(), _CONSOLE)
        os.closerange(_CONSOLE + 1, 256)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        libc = ctypes.CDLL(None, use_errno=True)
        uid = settings.get("uid")
        if uid is not None:
            _private_tun(libc, uid)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_SETUP_FAILED)
        if os.path.exists(HOLD):
            os.kill(os.getpid(), signal.SIGSTOP)
        os.execve(settings["kernel"], [REBOOT_PROGRAM, *settings["arguments"]],  # noqa: S606
                  {"PATH": os.defpath, "TMPDIR": settings["memory_directory"]})
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(_SETUP_FAILED)


def _private_tun(libc: ctypes.CDLL, uid: int) -> None:
    """Give the process a /dev/net/tun of its own, since that of the host may be accessible for root only. The kernel of
    the host lets a user attach to the tap devices of this user, and to no others."""
    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), "cannot make a private /dev/net/tun")

    if not os.path.isdir("/dev/net"):
        return
    check(libc.unshare(_CLONE_NEWNS))
    check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    check(libc.mount(b"tmpfs", b"/dev/net", b"tmpfs", ctypes.c_ulong(_MS_NOSUID), b"mode=755,size=64k"))
    os.mknod("/dev/net/tun", 0o600 | 0o020000, _TUN)
    os.chown("/dev/net/tun", uid, uid)


def main() -> None:
    os.chdir(sys.argv[1])
    os.umask(0o077)
    # A guest must never have two supervisors, even while one of them starts.
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("the guest has a supervisor already")
    if os.fork():
        os._exit(0)  # The forked process is the supervisor: not a child of nova-compute, and it inherits the lock.
    write(PID, identity(os.getpid()))
    try:
        Supervisor().run()
    finally:
        os.unlink(PID)


if __name__ == "__main__":
    main()
