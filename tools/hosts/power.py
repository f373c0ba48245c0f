"""The power supply of a host, or of a site's switch: it is on as long as this program runs.

    power.py host DIRECTORY      power.py switch DIRECTORY

Boots it in namespaces of its own, plugs in its cable and waits. The end of this program, by any signal, is a loss of
power. ``DIRECTORY/running`` names the first process while it is usable.
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
from tools.hosts.switch import Switch

_BOOT = str(pathlib.Path(__file__).with_name("boot.sh"))


def power_host(directory: pathlib.Path) -> NoReturn:
    host = Host.load(directory)
    host.forget()
    cgroups.make(host.group)
    ready, told = os.pipe()
    kernel.unshare("pid")

    def boot() -> NoReturn:
        os.dup2(told, 1)
        cgroups.join(host.group)
        kernel.unshare("cgroup", "ipc", "uts", "net", "mnt")
        cgroups.join(f"{host.group}/{cgroups.LEAF}")
        os.chdir("/")
        os.execve("/bin/sh", ["sh", _BOOT, str(directory)], {**os.environ, **host.boot_environment()})  # noqa: S606

    child = kernel.spawn(boot)
    kernel.enter(os.getpid(), "pid")  # further children are not the host's
    os.close(told)
    with os.fdopen(ready) as pipe:
        booted = pipe.readline() == "booted\n"
    if booted:
        switch = Switch.load(directory.parent / "switch")
        wait_for_switch(switch)
        switch.plug(host.number, child)
        host.remember(child)
    kernel.attend(child, kill=True)


def power_switch(directory: pathlib.Path) -> NoReturn:
    switch = Switch.load(directory)
    switch.forget()
    told, go_on = os.pipe()

    def run() -> NoReturn:
        kernel.unshare("net")
        os.write(go_on, b".")
        while True:
            time.sleep(1e6)

    child = kernel.spawn(run)
    os.close(go_on)
    if os.read(told, 1):
        switch.set_up(child)
        switch.remember(child)
    kernel.attend(child, kill=True)


def wait_for_switch(switch: Switch) -> None:
    """A supervisor may start both at the same time."""
    deadline = time.monotonic() + 20
    while not switch.usable() and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> NoReturn:
    kind, directory = sys.argv[1:]
    (power_host if kind == "host" else power_switch)(pathlib.Path(directory))


if __name__ == "__main__":
    main()
