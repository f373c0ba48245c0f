"""A vCenter simulator for tests: govmomi's, built by tools/vcsim/build.sh, as a process of its own."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

from tests.certificates import Authority

BUILD = pathlib.Path(__file__).parents[3] / "tools/vcsim/build.sh"
LIBRARY = pathlib.Path("/usr/share/gocode/src/github.com/vmware/govmomi/simulator")


def missing() -> str:
    """Return the reason why this machine cannot run the simulator, or ""."""
    return "" if shutil.which("go") and LIBRARY.is_dir() else \
        "needs the packages golang-go and golang-github-vmware-govmomi-dev"


class Vcsim:
    """A simulator in the directory ``place``: the cluster DC0_C0 of three hosts, the datastore LocalDS_0, the networks
    "VM Network" and "br-int", and a port group. ``serial_logs``: directory of the serial port concentrator."""

    def __init__(self, place: pathlib.Path, *arguments: str) -> None:
        self.serial_logs = place / "serial"
        self.serial_logs.mkdir()
        authority = Authority(place)
        self.ca_file, pair = authority.file, authority.issue("vcenter")
        program = subprocess.run([str(BUILD)], check=True, capture_output=True, text=True, timeout=600).stdout.strip()
        self._log = (place / "vcsim.log").open("wb")
        self.process = subprocess.Popen(
            [program, "-certificate", pair.certificate, "-key", pair.key, "-serial-logs", str(self.serial_logs),
             *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def stop(self) -> None:
        self.process.communicate(timeout=30)
        self._log.close()
