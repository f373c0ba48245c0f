"""Gates at the ports of our bridges: only what our packet filters let through passes.

A gate is a program of few instructions in the kernel's traffic control, and goes with its device only. What leaves by
the device must carry the mark that the filters put on what they accept: when all packet filters of a host are flushed,
and nobody is there to make them again, the ports are closed. What a guest sends must come in its own name: a wire that
the host uses for other things, too, has no gate.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nova import exception
from nova.network import commands, plumbing
from nova.network.filters import PASSED
from nova.objects import plain_ip
from nova.objects.network import VIF, link_local

LOG = logging.getLogger(__name__)

# Classic BPF: what instructions load (words, halves of them, what the kernel knows of a packet), compare and return.
_WORD, _HALF, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x28, 0x15, 0x45, 0x06
_PROTOCOL, _MARK, _TAGGED = 0xFFFFF000, 0xFFFFF000 + 20, 0xFFFFF000 + 48
_IPV4, _ARP, _IPV6, _RARP = 0x0800, 0x0806, 0x86DD, 0x8035
_OK, _DROP = 0, 2

# (operation, operand), and for comparisons where to go on, if so and if not: a name, or None for the next instruction.
Step = tuple[int, int] | tuple[int, int, str | None, str | None]


class Gate(NamedTuple):
    """What may leave by a device, and what may come from it (empty: anything)."""

    leaving: str
    coming: str = ""


def port() -> Gate:
    """A port of a bridge."""
    return Gate(_program({"": [(_WORD, _MARK), (_HAS_BITS, PASSED, "ok", "drop")]}))


def link() -> Gate:
    """The host's end of a network's way out: the filters of IP do not see the ARP that it takes."""
    return Gate(_program({"": [(_WORD, _PROTOCOL), (_EQUALS, _ARP, "ok", None),
                               (_WORD, _MARK), (_HAS_BITS, PASSED, "ok", "drop")]}))


def guest(vif: VIF) -> Gate:
    """The port of a guest, which sends in its own name: MAC address, and addresses in IP and ARP."""
    if not vif.security:
        return port()
    mac = bytes.fromhex(vif.mac.replace(":", ""))
    # It sends something before it has one.
    v4 = ["0.0.0.0", *vif.addresses(4)]
    v6 = ["::", link_local(vif.mac), *vif.addresses(6)] if vif.addresses(6) else []
    kinds = {_IPV4: "ipv4", _ARP: "arp", _IPV6: "ipv6", _RARP: "ok"}
    blocks: dict[str, list[Step]] = {"": [
        (_WORD, _TAGGED), (_EQUALS, 0, None, "drop"), *_same(6, mac),
        (_HALF, 12), *((_EQUALS, kind, name, None) for kind, name in kinds.items()), (_RETURN, _DROP)]}
    blocks["arp"] = [*_same(22, mac), (_WORD, 28), *_one_of(v4)]
    blocks["ipv4"] = [(_WORD, 26), *_one_of(v4)]
    blocks["ipv6"] = []
    for number, address in enumerate(v6):
        blocks[f"ipv6 {number}"] = _same(22, plain_ip.v6_address(address).packed, f"ipv6 {number + 1}")
        blocks[f"ipv6 {number}"].append((_RETURN, _OK))
    blocks[f"ipv6 {len(v6)}"] = [(_RETURN, _DROP)]
    return Gate(port().leaving, _program(blocks))


def _same(offset: int, value: bytes, otherwise: str = "drop") -> list[Step]:
    """Go on where the packet has this value (of 6 or 16 octets) there."""
    found: list[Step] = []
    for start in range(0, len(value), 4):
        part = value[start:start + 4]
        found += [(_WORD if len(part) == 4 else _HALF, offset + start),
                  (_EQUALS, int.from_bytes(part, "big"), None, otherwise)]
    return found


def _one_of(addresses: Sequence[str]) -> list[Step]:
    return [*((_EQUALS, int(ipaddress.IPv4Address(address)), "ok", None) for address in addresses), (_RETURN, _DROP)]


def _program(blocks: Mapping[str, Sequence[Step]]) -> str:
    """The blocks one after the other, as tc reads them; ok and drop come last."""
    blocks = {**blocks, "ok": [(_RETURN, _OK)], "drop": [(_RETURN, _DROP)]}
    places: dict[str, int] = {}
    steps: list[Step] = []
    for name, block in blocks.items():
        places[name] = len(steps)
        steps += block
    lines = []
    for number, step in enumerate(steps):
        jumps = [0 if name is None else places[name] - number - 1 for name in step[2:]] or [0, 0]
        lines.append(f"{step[0]} {jumps[0]} {jumps[1]} {step[1]}")
    return ",".join([str(len(lines)), *lines])


class Gates:
    """Those of one host. One thread at a time."""

    def __init__(self) -> None:
        # Device -> the number by which the kernel tells it from a later one of the same name, and its gate.
        self._made: dict[str, tuple[int, Gate]] = {}

    def ensure(self, gates: Mapping[str, Gate]) -> None:
        """There are these at those of the devices that exist. Costs a process when there is anything new."""
        there = {device: (index, gate) for device, gate in gates.items()
                 if (index := plumbing.index(device)) is not None}
        new = {device: gate for device, (index, gate) in there.items() if self._made.get(device) != (index, gate)}
        self._made = there
        if not new:
            return
        try:
            commands.run(["tc", "-force", "-batch", "-"], "".join(
                f"{line}\n" for device, gate in new.items() for line in _lines(device, gate)))
        except exception.NetworkSetupError:
            # A device may have gone meanwhile. Else the packet filters alone must do.
            left = [device for device in new if plumbing.index(device) == there[device][0]]
            if left:
                LOG.error("A flush of packet filters opens some of %s until they are made again: no gates", left)


def _lines(device: str, gate: Gate) -> list[str]:
    made = [f"qdisc replace dev {device} clsact"]
    return made + [f'filter replace dev {device} {way} pref 1 protocol all handle 1 bpf da bytecode "{program}"'
                   for way, program in (("egress", gate.leaving), ("ingress", gate.coming)) if program]
