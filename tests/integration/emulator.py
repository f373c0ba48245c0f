"""A QEMU whose emulated guests survive live migrations.

QEMU before 9.0 loses writes of the emulated CPU during a migration ("physmem: Fix migration dirty bitmap coherency with
TCG memory access") if the size of the memory is a multiple of 256 KiB. On a busy machine, up to every second guest
crashed afterwards. So all guests of tests have 8 KiB less.
"""

from __future__ import annotations

import os
import pathlib

_NAME = "qemu-system-x86_64"
_SCRIPT = r"""#!/bin/bash
small=("")
for argument; do
    if [[ ${small[-1]} == -m && $argument =~ ^[0-9]+$ ]]; then
        argument=$((argument * 1024 - 8))K
    elif [[ $argument =~ ^(.*\"id\":\"pc.ram\".*\"size\":)([0-9]+)(.*)$ ]]; then
        argument="${BASH_REMATCH[1]}$((BASH_REMATCH[2] - 8192))${BASH_REMATCH[3]}" edited=yes
    fi
    small+=("$argument")
done
[ -z "$edited" ] || set -- "${small[@]:1}"
exec /usr/bin/""" + _NAME + """ "$@"
"""


def search_path(directory: pathlib.Path) -> str:
    """Create the program in ``directory``, which guests may read, and return the PATH of a libvirtd that uses it."""
    program = directory / _NAME
    if not program.exists():  # libvirtd would examine a new program again
        directory.mkdir()
        directory.chmod(0o755)
        program.write_text(_SCRIPT, encoding="ascii")
        program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"
