"""Egress guards: BPF programs at bridge ports that drop packets which the packet filters have not accepted.

A guard is a short program in the kernel's traffic control and exists as long as its device. Packets that leave by the
device must carry the mark that the packet filters set on accepted packets. So a flush of all packet filters closes the
ports until the filters are restored. Packets from a guest must have the guest's own addresses. An interface that the
host also uses for other traffic has no guard."""

import ipaddress
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nova import exception
from nova.common import plain_ip
from nova.network.linux import commands, plumbing
from nova.network.linux.filters import PASSED
from nova.objects.networks.network import VIF, link_local

LOG = logging.getLogger(__name__)

# Classic BPF: opcodes (load word, load half-word, compare, return), and offsets of packet metadata.
_WORD, _HALF, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x28, 0x15, 0x45, 0x06
_PROTOCOL, _MARK, _TAGGED = 0xFFFFF000, 0xFFFFF000 + 20, 0xFFFFF000 + 48
_IPV4, _ARP, _IPV6, _RARP = 0x0800, 0x0806, 0x86DD, 0x8035
_OK, _DROP = 0, 2

# (opcode, operand), and for comparisons the blocks to jump to if true and if false (None: the next instruction).
Instruction = tuple[int, int] | tuple[int, int, str | None, str | None]


class Guard(NamedTuple):
    """Programs for packets that leave by a device and for packets that arrive from it ("": accept all)."""

    egress: str
    ingress: str = ""


def port() -> Guard:
    """Return the guard of a bridge port."""
    return Guard(_program({"": [(_WORD, _MARK), (_HAS_BITS, PASSED, "ok", "drop")]}))


def link() -> Guard:
    """Return the guard of the host's end of a network's link, which accepts ARP as well: IP filters do not mark ARP."""
    return Guard(_program({"": [(_WORD, _PROTOCOL), (_EQUALS, _ARP, "ok", None),
                               (_WORD, _MARK), (_HAS_BITS, PASSED, "ok", "drop")]}))


def guest(vif: VIF) -> Guard:
    """Return the guard of a guest's port, which must send from its own MAC and IP addresses."""
    if not vif.security:
        return port()
    mac = bytes.fromhex(vif.mac.replace(":", ""))
    # A guest sends from the unspecified address before it has an address.
    v4 = ["0.0.0.0", *vif.addresses(4)]
    v6 = ["::", link_local(vif.mac), *vif.addresses(6)] if vif.addresses(6) else []
    kinds = {_IPV4: "ipv4", _ARP: "arp", _IPV6: "ipv6", _RARP: "ok"}
    blocks: dict[str, list[Instruction]] = {"": [
        (_WORD, _TAGGED), (_EQUALS, 0, None, "drop"), *_require(6, mac),
        (_HALF, 12), *((_EQUALS, kind, name, None) for kind, name in kinds.items()), (_RETURN, _DROP)]}
    blocks["arp"] = [*_require(22, mac), (_WORD, 28), *_require_any(v4)]
    blocks["ipv4"] = [(_WORD, 26), *_require_any(v4)]
    blocks["ipv6"] = []
    for number, address in enumerate(v6):
        blocks[f"ipv6 {number}"] = _require(22, plain_ip.v6_address(address).packed, f"ipv6 {number + 1}")
        blocks[f"ipv6 {number}"].append((_RETURN, _OK))
    blocks[f"ipv6 {len(v6)}"] = [(_RETURN, _DROP)]
    return Guard(port().egress, _program(blocks))


def _require(offset: int, value: bytes, otherwise: str = "drop") -> list[Instruction]:
    """Return instructions that continue if the packet has this value (6 or 16 octets) at ``offset``."""
    instructions: list[Instruction] = []
    for start in range(0, len(value), 4):
        piece = value[start:start + 4]
        instructions += [(_WORD if len(piece) == 4 else _HALF, offset + start),
                         (_EQUALS, int.from_bytes(piece, "big"), None, otherwise)]
    return instructions


def _require_any(addresses: Sequence[str]) -> list[Instruction]:
    return [*((_EQUALS, int(ipaddress.IPv4Address(address)), "ok", None) for address in addresses), (_RETURN, _DROP)]


def _program(blocks: Mapping[str, Sequence[Instruction]]) -> str:
    """Return the blocks as a program in the syntax of tc, followed by the blocks ok and drop."""
    blocks = {**blocks, "ok": [(_RETURN, _OK)], "drop": [(_RETURN, _DROP)]}
    offsets: dict[str, int] = {}
    program: list[Instruction] = []
    for name, block in blocks.items():
        offsets[name] = len(program)
        program += block
    lines = []
    for number, instruction in enumerate(program):
        jumps = [0 if name is None else offsets[name] - number - 1 for name in instruction[2:]] or [0, 0]
        lines.append(f"{instruction[0]} {jumps[0]} {jumps[1]} {instruction[1]}")
    return ",".join([str(len(lines)), *lines])


class Guards:
    """The guards of this host. Not thread-safe."""

    def __init__(self) -> None:
        # Device -> interface index (which a later device of the same name does not share) and guard.
        self._installed: dict[str, tuple[int, Guard]] = {}

    def ensure(self, guards: Mapping[str, Guard]) -> None:
        """Install these guards at the devices that exist. Starts a process if there are new guards."""
        present = {device: (index, guard) for device, guard in guards.items()
                   if (index := plumbing.index(device)) is not None}
        new = {device: guard for device, (index, guard) in present.items()
               if self._installed.get(device) != (index, guard)}
        self._installed = present
        if not new:
            return
        try:
            commands.run(["tc", "-force", "-batch", "-"], "".join(
                f"{line}\n" for device, guard in new.items() for line in _lines(device, guard)))
        except exception.NetworkSetupError:
            # A device may have been removed meanwhile.
            unguarded = [device for device in new if plumbing.index(device) == present[device][0]]
            if unguarded:
                LOG.error("Cannot install the egress guards of one or more of the devices %s: if filters are flushed, "
                          "these devices send unfiltered traffic until the filters are restored", unguarded)


def _lines(device: str, guard: Guard) -> list[str]:
    return [f"qdisc replace dev {device} clsact"] + [
        f'filter replace dev {device} {way} pref 1 protocol all handle 1 bpf da bytecode "{program}"'
        for way, program in (("egress", guard.egress), ("ingress", guard.ingress)) if program]
