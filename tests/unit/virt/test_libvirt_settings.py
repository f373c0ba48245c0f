"""Driver settings from configuration options and host capabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.virt import host_report
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.node.capabilities import Capabilities
from nova.virt.libvirt.xml import settings

MODES = ("host-model", "custom", "maximum")


@pytest.fixture(autouse=True)
def conf() -> Iterator[Any]:
    register(CONF)
    yield CONF
    for name in ("cpu_mode", "cpu_models", "cpu_model_extra_flags", "disk_cachemodes", "hw_machine_type",
                 "sysinfo_serial", "virt_type"):
        CONF.clear_override(name, "libvirt")
    CONF.clear_override("enabled", "vnc")
    CONF.clear_override("state_path")


def found() -> settings.Settings:
    return settings.from_conf("host1", "x86_64", "host-uuid", direct_io=True)


def test_libvirt_settings_without_options_are_the_defaults() -> None:
    plain = settings.with_cpu(found(), MODES, ())
    assert (plain.virt_type, plain.cpu_mode, plain.cache, plain.vnc_listen) == ("kvm", "host-model", "none", None)
    assert settings.with_cpu(found(), ("maximum",), ()).cpu_mode is None, "an unsupported default CPU mode is used"
    assert settings.from_conf("h", "x86_64", "u", direct_io=False).cache == "writeback"


def test_unset_spice_options_are_left_to_qemu() -> None:
    assert found().spice is None
    options = {"enabled": True, "server_listen": "10.0.0.1", "jpeg_compression": "never", "playback_compression": False}
    for name, value in options.items():
        CONF.set_override(name, value, "spice")
    try:
        assert found().spice == settings.Spice("10.0.0.1", choices=(("jpeg", "compression", "never"),
                                                                    ("playback", "compression", "off")))
    finally:
        for name in options:
            CONF.clear_override(name, "spice")


def test_unsupported_cpu_mode_is_refused() -> None:
    CONF.set_override("cpu_mode", "host-passthrough", "libvirt")
    with pytest.raises(exception.InvalidInput, match="cpu_mode"):
        settings.with_cpu(found(), MODES, ())


def test_first_supported_cpu_model_is_used() -> None:
    CONF.set_override("cpu_mode", "custom", "libvirt")
    CONF.set_override("cpu_models", ["EPYC", "Nehalem", "Penryn"], "libvirt")
    assert settings.with_cpu(found(), MODES, {"Nehalem", "Penryn"}).cpu_model == "Nehalem"
    with pytest.raises(exception.InvalidInput, match="cpu_models"):
        settings.with_cpu(found(), MODES, {"Conroe"})


def test_machine_type_and_cache_mode_options_are_parsed() -> None:
    CONF.set_override("hw_machine_type", ["x86_64=q35", "aarch64=virt"], "libvirt")
    CONF.set_override("disk_cachemodes", ["file=unsafe"], "libvirt")
    assert found().machines == {"x86_64": "q35", "aarch64": "virt"}
    assert found().cache == "unsafe"
    CONF.set_override("hw_machine_type", ["q35"], "libvirt")
    with pytest.raises(exception.InvalidInput, match="hw_machine_type"):
        found()


@pytest.mark.parametrize(("kind", "serial"), [("unique", None), ("none", ""), ("hardware", "host-uuid")])
def test_sysinfo_serial_option_sets_the_host_serial(kind: str, serial: str | None) -> None:
    CONF.set_override("sysinfo_serial", kind, "libvirt")
    assert found().host_serial == serial


@pytest.mark.parametrize(("kind", "content", "serial"), [
    ("auto", "1b1e6f2c8f0c4c0b9f530d3c8e0c9a11\n", "1b1e6f2c-8f0c-4c0b-9f53-0d3c8e0c9a11"), ("auto", "", "host-uuid"),
    ("auto", None, "host-uuid"), ("os", None, None)])
def test_host_serial_is_the_machine_id_if_it_can_be_read(kind: str, content: str | None, serial: str | None,
                                                         tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machine-id"
    path.mkdir() if content is None else path.write_text(content)
    monkeypatch.setattr(settings, "_MACHINE_ID", str(path))
    CONF.set_override("sysinfo_serial", kind, "libvirt")
    with contextlib.nullcontext() if serial else pytest.raises(exception.InvalidInput, match="machine-id"):
        assert found().host_serial == serial


def test_node_uuid_is_stable_and_unique(tmp_path: Any) -> None:
    CONF.set_override("state_path", str(tmp_path))
    first = host_report.node_uuid("a", "a.example")
    assert first == host_report.node_uuid("a", "a.example")
    assert first != host_report.node_uuid("b", "a.example")
    (tmp_path / "compute_id").write_text("1B1E6F2C-8F0C-4C0B-9F53-0D3C8E0C9A11\n")
    assert host_report.node_uuid("a", "a.example") == "1b1e6f2c-8f0c-4c0b-9f53-0d3c8e0c9a11"


def test_host_option_determines_the_node_name() -> None:
    assert host_report.node_name("virtual-1", "machine.example") == "virtual-1"


def test_node_traits_match_the_host_capabilities() -> None:
    capabilities = Capabilities(
        arch="x86_64", host_uuid="", cpu_info={"topology": {"threads": 2}},
        guests=(("x86_64", "qemu", "hvm"), ("i686", "qemu", "hvm")), features=frozenset({"avx2", "pni", "unheard-of"}),
        disk_buses=frozenset({"virtio", "fdc"}), video_models=frozenset({"vga", "ramfb"}), uefi=True)
    names = inventory.traits_of_node(capabilities)
    assert names == sorted(set(names))
    assert {"HW_CPU_X86_AVX2", "HW_CPU_X86_SSE3", "HW_CPU_HYPERTHREADING", "COMPUTE_STORAGE_BUS_VIRTIO",
            "COMPUTE_GRAPHICS_MODEL_VGA", "COMPUTE_FIRMWARE_UEFI", "OWNER_NOVA", "COMPUTE_NODE", "COMPUTE_RESCUE_BFV",
            "COMPUTE_VOLUME_MULTI_ATTACH",
            "COMPUTE_ARCH_X86_64", "HW_ARCH_X86_64"} <= set(names)
    assert "COMPUTE_SECURITY_UEFI_SECURE_BOOT" not in names
    assert "COMPUTE_STORAGE_BUS_IDE" not in names
    assert not any("RAMFB" in name or "UNHEARD" in name for name in names)
