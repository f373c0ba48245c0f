"""Run a command on a running host: enter.py DIRECTORY COMMAND [ARGUMENT...]

Waits up to 20 s for a booting host. Signals are forwarded, the exit status is that of the command, and the command is
killed with this program.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import NoReturn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tools.hosts import cgroups, kernel
from tools.hosts.host import Host

_BOOT_LIMIT = 20.0


def main() -> NoReturn:
    directory, *command = sys.argv[1:]
    host = Host.load(pathlib.Path(directory))
    deadline = time.monotonic() + _BOOT_LIMIT
    while (init := host.pid) is None:
        if time.monotonic() > deadline:
            sys.exit(f"{host.name} is off")
        time.sleep(0.05)
    kernel.enter(init, "pid")

    def run() -> NoReturn:
        cgroups.join(f"{host.group}/{cgroups.LEAF}")
        kernel.enter(init, "cgroup", "ipc", "uts", "net", "mnt")
        os.chdir("/")
        os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
        os.execvp(command[0], command)  # noqa: S606

    kernel.attend(kernel.spawn(run))


if __name__ == "__main__":
    main()
