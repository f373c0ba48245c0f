"""Start child processes that end with this process, and Python programs as forks of a process that has imported Nova.

Imports take a service about a second of CPU time, and a test cluster has ten services. A fork then behaves like
``python -c`` or ``python -m``, with its own arguments, environment, output and session.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tests.paths import ROOT

# The first module selects oslo.service's threading back end.
_SERVICES = (
    "nova.service.run", "nova.compute.identity", "nova.compute.service", "nova.conductor.service",
    "nova.scheduler.manager", "nova.scheduler.service", "nova.cmd.api_workers", "nova.cmd.metadata",
    "nova.cmd.console_proxies", "nova.cmd.manage", "nova.virt.fake.driver", "amqp", "pymysql", "psycopg2")
_PR_SET_PDEATHSIG = 1
_MESSAGE = 1 << 20
# The glibc setting of Nova's services, without which each of them would execute Python again.
_TUNABLES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
_lock = threading.Lock()
# Connections to the fork servers, by imported modules.
_servers: dict[tuple[str, ...], socket.socket] = {}
# Linux takes the end of the thread that started a child for the end of its parent, so children are started by a thread
# that lives as long as the process.
_STARTER = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="starter")


class Forked:
    """A running program, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return None while the process runs, then 0."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float) -> int:
        """Wait until the process ends. Raises subprocess.TimeoutExpired."""
        if self._file is not None:
            poll = select.poll()  # select.select refuses descriptors above 1023
            poll.register(self._file, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            os.close(self._file)
            self._file = None
        return 0

    def send_signal(self, number: int) -> None:
        """Send a signal to the program alone, not to its children."""
        file = self._file  # wait() in another thread may close it and set None
        if file is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, number)


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in ``/`` with a new session, to be killed when this process ends. ``options`` are those of
    Popen."""
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    return _STARTER.submit(subprocess.Popen, [*guard, *command], stdin=subprocess.DEVNULL, cwd="/",
                           start_new_session=True, **options).result()


def start(command: Sequence[str], env: Mapping[str, str], output: IO[bytes],
          modules: tuple[str, ...] = _SERVICES) -> Forked:
    """Start ``[sys.executable, "-c" or "-m", …]`` in ``/`` with a new session, with stdout and stderr to ``output``.

    The program is a fork of a process that has imported ``modules``, and is killed when this process ends.
    """
    return _order(command, env, modules, output.fileno(), output.fileno())


def run(command: Sequence[str], env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program like subprocess.run with captured output."""
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = _order(command, env, _SERVICES, out.fileno(), err.fileno(), writer)
            finally:
                os.close(writer)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            status = os.read(reader, 16)
            return subprocess.CompletedProcess(command, int(status) if status else -signal.SIGKILL, *texts)
    finally:
        os.close(reader)


def _order(command: Sequence[str], env: Mapping[str, str], modules: tuple[str, ...], *files: int) -> Forked:
    message = json.dumps([list(command[1:]), {**os.environ, **env, **_TUNABLES}]).encode()
    with _lock:
        if modules not in _servers:
            _servers[modules] = _launch(modules)
        server = _servers[modules]
        socket.send_fds(server, [message], files)
        answer = server.recv(64)
    assert answer, "the fork server has exited; its error is in the output of the tests"
    return Forked(int(answer))


def _launch(modules: tuple[str, ...]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        spawn([sys.executable, "-m", "tests.integration.forkserver", str(theirs.fileno()), *modules],
              env={**os.environ, **_TUNABLES, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
              pass_fds=[theirs.fileno()])
    return ours


# --- the server --------------------------------------------------------------------------------------------
def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children, and their pidfd becomes readable
    while True:
        message, files, _flags, _address = socket.recv_fds(control, _MESSAGE, 3)
        if not message:
            return
        assert threading.active_count() == 1, threading.enumerate()
        pid = os.fork()
        if not pid:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            words, env = json.loads(message)
            _execute(words, env, files)
            return
        for file in files:
            os.close(file)
        control.send(str(pid).encode())


def _execute(words: list[str], env: dict[str, str], files: list[int]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files[:2]):
        os.dup2(file, number + 1)
        os.close(file)
    option, program, *arguments = words
    sys.argv[:] = ["-c" if option == "-c" else program, *arguments]
    status: Any = 0
    try:
        if option == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code or 0
        raise
    except BaseException:
        status = 1
        raise
    finally:
        if len(files) > 2:
            os.write(files[2], str(status if isinstance(status, int) else 1).encode())


if __name__ == "__main__":
    _main()
