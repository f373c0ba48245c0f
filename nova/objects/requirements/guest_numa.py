"""The CPU policy and the NUMA topology that a flavor and an image request. All functions raise InvalidInput for invalid
values, and for values of the image that the flavor does not allow."""

import re

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import whole
from nova.objects.dedicated_resources import numa
from nova.objects.dedicated_resources.numa import GuestCell, GuestTopology
from nova.objects.images.image import Image

SHARED, DEDICATED, MIXED = "shared", "dedicated", "mixed"
# A page size, in KiB if it has no unit; and the units in KiB.
_SIZE = re.compile(r"(?P<number>\d{1,15})((?P<unit>[kKMGT])i?)?(?P<bits>b|bit|B)?")
_UNITS = {"k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_MOST_CELLS = 128  # maximum number of cells of a guest


def either(flavor: Flavor, image: Image | None, key: str) -> str | None:
    """Return a property that the flavor (``hw:x``) or else the image (``hw_x``) sets."""
    value = flavor.extra_specs.get(key)
    return _of_image(image, key) if value is None else value


def is_true(value: str | None) -> bool:
    return value is not None and str(value).strip().lower() in _TRUE


def _of_image(image: Image | None, key: str) -> str | None:
    return image.properties.get(key.replace(":", "_")) if image is not None else None


def _refuse(reason: str) -> exception.InvalidInput:
    return exception.InvalidInput(reason=reason)


def _check_choice(key: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value is not None and value not in allowed:
        raise _refuse(f"{key} must be one of {', '.join(allowed)}, not '{value}'.")
    return value or ""


# --- CPUs --------------------------------------------------------------------------------------
def cpu_policy(flavor: Flavor, image: Image | None) -> str:
    """Return the CPU policy: shared, dedicated or mixed."""
    allowed = (SHARED, DEDICATED, MIXED)
    of_flavor = _check_choice("hw:cpu_policy", flavor.extra_specs.get("hw:cpu_policy"), allowed)
    of_image = _check_choice("hw_cpu_policy", _of_image(image, "hw:cpu_policy"), allowed)
    if not of_flavor and flavor.extra_specs.get("resources:PCPU"):
        _check_pcpus(flavor)
        return DEDICATED
    if of_flavor == DEDICATED:
        return DEDICATED
    if (of_flavor == MIXED and of_image == DEDICATED) or (of_flavor == SHARED and of_image in (DEDICATED, MIXED)):
        raise _refuse(f"Image property 'hw_cpu_policy' ({of_image}) is not permitted to override CPU pinning policy "
                      f"set against the flavor ({of_flavor})")
    return of_flavor or of_image or SHARED


def _check_pcpus(flavor: Flavor) -> None:
    wanted = flavor.vcpus + (1 if flavor.extra_specs.get("hw:emulator_threads_policy") == numa.ISOLATE else 0)
    if "resources:VCPU" in flavor.extra_specs:
        raise _refuse("resources:PCPU and resources:VCPU cannot be used together.")
    if flavor.extra_specs["resources:PCPU"].strip() != str(wanted):
        raise _refuse(f"resources:PCPU must be {wanted}: the flavor's CPUs, and one for an isolated emulator.")


def pinned_cpus(flavor: Flavor, image: Image | None) -> set[int]:
    """Return the guest's CPUs with a dedicated CPU of the host."""
    policy, everything = cpu_policy(flavor, image), set(range(flavor.vcpus))
    mask = flavor.extra_specs.get("hw:cpu_dedicated_mask")
    if mask and policy != MIXED:
        raise _refuse("hw:cpu_dedicated_mask needs hw:cpu_policy mixed.")
    if policy == DEDICATED:
        return everything
    if policy == SHARED:
        return set()
    pinned = cpu_mask(mask or either(flavor, image, "hw:cpu_realtime_mask") or "", flavor.vcpus)
    if not pinned or pinned == everything:
        raise _refuse("hw:cpu_policy mixed needs hw:cpu_dedicated_mask, with at least one CPU pinned and one not.")
    return pinned


def cpu_mask(mask: str, count: int) -> set[int]:
    """Return the CPUs below ``count`` in a mask like ``0-3,^2``. With only ``^`` entries: all CPUs except these."""
    parts = [part.strip() for part in mask.split(",") if part.strip()]
    everything = set(range(count))
    named: set[int] = everything if all(part.startswith("^") for part in parts) else set()
    excluded: set[int] = set()
    for part in parts:
        target = excluded if part.startswith("^") else named
        first, _, last = part.removeprefix("^").partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None:
            raise _refuse(f"'{mask}' is not a list of CPUs.")
        # Limited to the CPUs of the flavor, since the mask may contain any number.
        target.update(range(low, min(high + 1, count)))
    return (named - excluded) & everything


def thread_policy(flavor: Flavor, image: Image | None) -> str:
    """Return the thread policy: prefer, isolate, require or ""."""
    allowed = (numa.PREFER, numa.ISOLATE, numa.REQUIRE)
    of_flavor = _check_choice("hw:cpu_thread_policy", flavor.extra_specs.get("hw:cpu_thread_policy"), allowed)
    of_image = _check_choice("hw_cpu_thread_policy", _of_image(image, "hw:cpu_thread_policy"), allowed)
    if of_flavor and of_image and of_flavor != of_image:
        raise _refuse("Image property 'hw_cpu_thread_policy' is not permitted to override CPU thread pinning policy "
                      "set against the flavor")
    if (of_flavor or of_image) and cpu_policy(flavor, image) == SHARED:
        raise _refuse("Cannot set cpu thread pinning policy in a non dedicated cpu pinning policy")
    return of_flavor or of_image


def emulator_policy(flavor: Flavor, image: Image | None) -> str:
    """Return the emulator thread policy: share, isolate or ""."""
    policy = _check_choice("hw:emulator_threads_policy", flavor.extra_specs.get("hw:emulator_threads_policy"),
                     ("share", numa.ISOLATE))
    if policy == numa.ISOLATE and cpu_policy(flavor, image) == SHARED:
        raise _refuse("An isolated CPU emulator threads option requires a dedicated CPU policy option.")
    return policy


# --- memory ------------------------------------------------------------------------------------
def page_size(flavor: Flavor, image: Image | None) -> str:
    """Return the page size: small, large, any, a number of KiB, or ""."""
    of_flavor = _page_size("hw:mem_page_size", flavor.extra_specs.get("hw:mem_page_size"))
    of_image = _page_size("hw_mem_page_size", _of_image(image, "hw:mem_page_size"))
    if not of_image:
        return of_flavor
    if of_flavor not in (numa.LARGE, numa.ANY):
        raise _refuse(f"hw_mem_page_size={of_image} of the image is not allowed: hw:mem_page_size of the flavor is "
                      f"{of_flavor or 'not set'}, but must be large or any.")
    return of_image


def _page_size(key: str, value: str | None) -> str:
    if value is None or value in (numa.SMALL, numa.LARGE, numa.ANY):
        return value or ""
    match = _SIZE.fullmatch(value)
    size = 0
    if match:
        unit = match["unit"]
        size = int(match["number"]) * _UNITS[(unit or "k").lower()]
        if match["bits"] in ("b", "bit"):
            size //= 8
    if size < 1:
        raise _refuse(f"{key}: '{value}' is not a memory page size.")
    return str(size)


# --- cells -------------------------------------------------------------------------------------
def guest_topology(flavor: Flavor, image: Image | None) -> GuestTopology | None:
    """Return the NUMA topology of the guest, which a host must fit, or None if the guest may use all cells."""
    pinned, size = pinned_cpus(flavor, image), page_size(flavor, image)
    threads, emulator = thread_policy(flavor, image), emulator_policy(flavor, image)
    cells = _cells(flavor, image)
    if not cells:
        if not (pinned or size or flavor.extra_specs.get("hw:pmem")):
            return None
        cells = [(set(range(flavor.vcpus)), flavor.memory_mb)]
    return GuestTopology(
        cells=[GuestCell(id=number, cpus=sorted(cpus - pinned), pcpus=sorted(cpus & pinned), memory_mb=memory)
               for number, (cpus, memory) in enumerate(cells)],
        thread_policy=threads, emulator_policy=emulator, page_size=size)


def _cells(flavor: Flavor, image: Image | None) -> list[tuple[set[int], int]]:
    """Return (CPUs, MiB) of each cell that hw:numa_* properties request."""
    of_image = {key.replace("hw_", "hw:", 1): value for key, value in (image.properties if image else {}).items()
                if key.startswith("hw_numa_")}
    given = {key: value for key, value in flavor.extra_specs.items() if key.startswith("hw:numa_")}
    for key in of_image.keys() & given.keys():
        raise _refuse(f"Image property '{key.replace(':', '_')}' is not permitted to override NUMA configuration set "
                      "against the flavor")
    given |= of_image
    number = given.get("hw:numa_nodes")
    if number is None:
        if given:
            raise _refuse(f"{sorted(given)[0]} needs hw:numa_nodes.")
        return []
    cells = whole(number)
    if cells is None or not 1 <= cells <= _MOST_CELLS:
        raise _refuse(f"hw:numa_nodes must be a number from 1 to {_MOST_CELLS}, not '{number}'.")
    return _manual(flavor, given, cells) if len(given) > 1 else _even(flavor, cells)


def _even(flavor: Flavor, number: int) -> list[tuple[set[int], int]]:
    if flavor.vcpus % number or flavor.memory_mb % number:
        raise _refuse("Instance CPUs and/or memory cannot be evenly distributed across instance NUMA nodes. Explicit "
                      "assignment of CPUs and memory to nodes is required")
    size = flavor.vcpus // number
    return [(set(range(index * size, (index + 1) * size)), flavor.memory_mb // number) for index in range(number)]


def _manual(flavor: Flavor, given: dict[str, str], number: int) -> list[tuple[set[int], int]]:
    cells: list[tuple[set[int], int]] = []
    for index in range(number):
        cpus, memory = given.get(f"hw:numa_cpus.{index}"), given.get(f"hw:numa_mem.{index}")
        if cpus is None or memory is None:
            raise _refuse(f"CPU and memory allocation must be provided for all NUMA nodes: hw:numa_cpus.{index} and "
                          f"hw:numa_mem.{index} are needed.")
        size = whole(memory)
        if not size:
            raise _refuse(f"hw:numa_mem.{index} must be a number of MiB, not '{memory}'.")
        cells.append((_named(cpus, flavor, index), size))
    beyond = given.keys() - {"hw:numa_nodes"} - {
        f"hw:numa_{what}.{index}" for what in ("cpus", "mem") for index in range(number)}
    if beyond:
        raise _refuse(f"{sorted(beyond)[0]} is beyond hw:numa_nodes={number}.")
    if sorted(cpu for cpus, _memory in cells for cpu in cpus) != list(range(flavor.vcpus)):
        raise _refuse("hw:numa_cpus must name every CPU of the flavor exactly once.")
    if sum(memory for _cpus, memory in cells) != flavor.memory_mb:
        raise _refuse(f"hw:numa_mem must sum up to the flavor's {flavor.memory_mb} MiB.")
    return cells


def _named(cpus: str, flavor: Flavor, index: int) -> set[int]:
    named = cpu_mask(cpus, flavor.vcpus)
    # cpu_mask() ignores CPUs that the flavor does not have.
    if not named or cpu_mask(cpus, 2 * flavor.vcpus + 1) != named:
        raise _refuse(f"hw:numa_cpus.{index} names CPUs that the flavor does not have.")
    return named
