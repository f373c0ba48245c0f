"""Gates at the ports of our bridges: only what our packet filters let through passes.

A gate is a program of four instructions in the kernel's traffic control. It drops whatever does not carry the mark that
the filters put on what they accept, and goes with its device only: when all packet filters of a host are flushed, and
nobody is there to make them again, the ports are closed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from nova import exception
from nova.network import commands, plumbing
from nova.network.filters import PASSED

LOG = logging.getLogger(__name__)

# Classic BPF: operation, jumps, operand. The ancillary data of a packet begin at -0x1000.
_LOAD, _HAS_BITS, _EQUALS, _RETURN = 0x20, 0x45, 0x15, 0x06
_PROTOCOL, _MARK = 0xFFFFF000, 0xFFFFF000 + 20
_ARP = 0x0806
_OK, _DROP = 0, 2
_END = [(_LOAD, 0, 0, _MARK), (_HAS_BITS, 0, 1, PASSED), (_RETURN, 0, 0, _OK), (_RETURN, 0, 0, _DROP)]
# On a link filters of IP say what passes: they do not see the ARP that it takes.
_LINK = [(_LOAD, 0, 0, _PROTOCOL), (_EQUALS, 2, 0, _ARP), *_END]


class Gates:
    """Those of one host. One thread at a time."""

    def __init__(self) -> None:
        # Device -> the number by which the kernel tells it from a later one of the same name.
        self._made: dict[str, int] = {}

    def ensure(self, ports: Collection[str], links: Collection[str]) -> None:
        """There are gates at those of these devices that exist. Costs a process when there are new ones."""
        there = {device: index for device in (*ports, *links) if (index := plumbing.index(device)) is not None}
        new = [device for device, index in there.items() if self._made.get(device) != index]
        self._made = there
        lines = []
        for device in new:
            program = _LINK if device in links else _END
            code = ",".join([str(len(program)), *(" ".join(map(str, step)) for step in program)])
            lines += [f"qdisc replace dev {device} clsact",
                      f'filter replace dev {device} egress pref 1 protocol all handle 1 bpf da bytecode "{code}"']
        if not lines:
            return
        try:
            commands.run(["tc", "-force", "-batch", "-"], "\n".join(lines) + "\n")
        except exception.NetworkSetupError:
            # A device may have gone meanwhile. Else the packet filters alone must do.
            left = [device for device in new if plumbing.index(device) == there[device]]
            if left:
                LOG.error("A flush of packet filters opens some of %s until they are made again: no gates", left)

