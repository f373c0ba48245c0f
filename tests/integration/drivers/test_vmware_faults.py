"""The VMware driver when something fails: a frozen vCenter, a transfer that ends early, processes that were killed."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import os
import pathlib
import signal
import ssl
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.virt.vmware.driver import VmwareDriver
from nova.virt.vmware.session import VCenter
from tests.certificates import Authority
from tests.integration.drivers.subject import faster_than
from tests.integration.drivers.test_vmware_driver import (  # noqa: F401 (fixtures)
    disks,
    host_fixture,
    machine,
    options,
    pytestmark,
    snapshots,
    subject_fixture,
)
from tests.integration.drivers.vmware_subject import VmwareSubject


@contextlib.contextmanager
def frozen(subject: VmwareSubject, seconds: float = 0) -> Iterator[None]:
    """Freeze vCenter within the block, or for a number of seconds."""
    def thaw() -> None:
        os.kill(subject.vcsim.process.pid, signal.SIGCONT)

    os.kill(subject.vcsim.process.pid, signal.SIGSTOP)
    if seconds:
        threading.Timer(seconds, thaw).start()
    try:
        yield
    finally:
        thaw()


def test_stop_does_not_wait_for_a_frozen_vcenter(subject: VmwareSubject) -> None:
    with options(request_timeout=8):
        driver = VmwareDriver("other")
        driver.start(lambda _status: None)
        with frozen(subject), faster_than(10):
            driver.stop()


def test_task_goes_on_while_vcenter_does_not_respond(subject: VmwareSubject) -> None:
    instance, vcenter = subject.boot(), VCenter()
    with options(request_timeout=1):
        vcenter.start()
    ref = vcenter.reference(vim.VirtualMachine, machine(subject, instance)._moId)
    task = ref.PowerOffVM_Task()
    with frozen(subject, seconds=2.5):
        vcenter.wait(task)
    assert subject.state(instance) == states.SHUTDOWN
    vcenter.stop()


def test_failed_start_ends_its_session(subject: VmwareSubject) -> None:
    driver = VmwareDriver("other")
    with options(cluster_name="nowhere"), pytest.raises(exception.InvalidInput):
        driver.start(lambda _status: None)
    with pytest.raises(exception.HypervisorUnavailable) as refused:
        driver.nodes()
    assert "no session" in refused.value.inside


def test_start_removes_conversions_of_a_killed_process(subject: VmwareSubject) -> None:
    own, foreign = (pathlib.Path(CONF.instances_path, name) for name in ("upload-cluster%2F1-abc", "upload-b-abc"))
    for place in (own, foreign):
        place.mkdir()
        (place / "disk.vmdk").write_bytes(b"part of a disk")
    driver = VmwareDriver("cluster/1")
    driver.start(lambda _status: None)
    driver.stop()
    assert (own.exists(), foreign.exists()) == (False, True)


def test_snapshot_of_a_killed_process_is_removed_before_a_volume_is_detached(subject: VmwareSubject) -> None:
    """The volume would not have what the guest wrote since the snapshot."""
    volume = subject.volume(7)
    instance = subject.boot(block_devices=[volume])
    machine(subject, instance).CreateSnapshot_Task("nova-image", "", False, False)
    machine(subject, instance).CreateSnapshot_Task("of an operator", "", False, False)
    subject.driver.volumes.detach(instance, volume)
    left = snapshots(subject, instance).rootSnapshotList
    assert [tree.name for tree in left] == ["of an operator"]


def test_guest_whose_move_was_interrupted_is_defined_again(subject: VmwareSubject) -> None:
    """The process was killed after the guest was stopped, and before its machine was renamed."""
    instance = subject.boot()
    machine(subject, instance).PowerOffVM_Task()
    machine(subject, instance).ReconfigVM_Task(vim.vm.ConfigSpec(managedBy=vim.ext.ManagedByInfo(
        extensionKey="org.openstack.compute", type="disks")))
    assert subject.driver.guests.all() == []
    subject.driver.cold_migration.revert(instance)
    assert subject.state(instance) == states.SHUTDOWN


class _Truncated(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"a part")

    def log_message(self, *_args: Any) -> None: ...


class _Leased(VCenter):
    """A vCenter whose lease is ready, with a disk at this port."""

    port = 0

    def _ready(self, _lease: Any) -> Any:
        url = f"https://127.0.0.1:{self.port}/disk.vmdk"
        return types.SimpleNamespace(deviceUrl=[types.SimpleNamespace(disk=True, url=url)])


def test_download_that_ends_early_is_no_image(tmp_path: pathlib.Path) -> None:
    authority, calls = Authority(tmp_path), list[str]()
    pair = authority.issue("esx")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Truncated)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    vcenter = _Leased()
    vcenter.port = server.server_port
    lease = types.SimpleNamespace(HttpNfcLeaseAbort=lambda: calls.append("abort"),
                                  HttpNfcLeaseComplete=lambda: calls.append("complete"))
    with options(ca_file=authority.file), pytest.raises(exception.NovaException, match="994 bytes are missing"):
        vcenter.export(types.SimpleNamespace(ExportVm=lambda: lease), str(tmp_path / "disk"), 1 << 20, lambda: None)
    assert calls == ["abort"]
    server.shutdown()
    server.server_close()


class _Killed(BaseException): ...


def test_rebuild_that_is_killed_at_any_request_keeps_the_ephemeral_disk(
        subject: VmwareSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    vcenter, finished, kills = subject.driver._guests.vcenter, False, 4
    wait = vcenter.wait
    while not finished:
        instance = subject.boot(flavor={"ephemeral_gb": 1})
        disk = next(device for device in disks(subject, instance) if "ephemeral" in device.backing.fileName)
        content = f"content {kills}".encode()
        file_of(subject, disk).write_bytes(content)
        requests = itertools.count()

        def until_killed(task: Any, timeout: float | None = None) -> Any:
            if next(requests) >= kills:  # noqa: B023 - the request was sent, the process dies before the response
                raise _Killed
            return wait(task, timeout)

        with monkeypatch.context() as patch:
            patch.setattr(vcenter, "wait", until_killed)
            try:
                subject.driver.disks.replace(instance, subject.files(instance), "token", keep_ephemerals=True)
                finished = True
            except _Killed:
                kills += 1
        subject.driver.disks.replace(instance, subject.files(instance), "token", keep_ephemerals=True)
        kept = [device for device in disks(subject, instance) if "ephemeral" in device.backing.fileName]
        assert [file_of(subject, device).read_bytes() for device in kept] == [content], f"killed at request {kills}"
        subject.driver.guests.destroy(instance)
        assert subject.driver.guests.traces() == set()
    assert kills > 8


def file_of(subject: VmwareSubject, disk: Any) -> pathlib.Path:
    """Return the file with the data of a disk."""
    name = disk.backing.fileName.removeprefix("[LocalDS_0] ").removesuffix(".vmdk")
    return pathlib.Path(subject.datastore / f"{name}-flat.vmdk")
