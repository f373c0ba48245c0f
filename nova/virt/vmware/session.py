"""The session with a vCenter server: requests, tasks, properties and files.

Each request has a deadline. A session that expired is replaced by a new login, and the request is repeated; queries are
also repeated on a new connection. Threads share the session, and send their requests in parallel."""

import contextlib
import http.client
import logging
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from pyVmomi import SoapStubAdapter, vim, vmodl

from nova import exception
from nova.conf import CONF
from nova.virt.vmware import errors

LOG = logging.getLogger(__name__)

# Version of the API: that of vCenter 6.5, which all later releases offer.
_VERSION = "vim.version.version11"
_QUERIES = frozenset({"Fetch", "RetrievePropertiesEx", "ContinueRetrievePropertiesEx", "RetrieveServiceContent",
                      "FindByUuid", "FindExtension"})
_RETRY_INTERVAL = 1.0
# Seconds without a response of vCenter after which waiting for a task fails; maximum seconds of a logout.
_SILENCE, _LOGOUT_SECONDS = 120.0, 5.0
# Seconds between two reports of progress during a download: without reports vCenter ends the download.
_LEASE_INTERVAL = 30.0
# Seconds after which idle connections are closed: a change must not be sent while vCenter closes its connection.
_IDLE_SECONDS = 10
_CHUNK = 1 << 20


def tls_context() -> ssl.SSLContext:
    """Return the context for connections to vCenter and its hosts. Raises InvalidInput for an unusable ca_file."""
    if CONF.vmware.insecure:
        return ssl._create_unverified_context()  # noqa: S323 - the operator's decision
    try:
        return ssl.create_default_context(cafile=CONF.vmware.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise exception.InvalidInput(reason=f"[vmware]ca_file {CONF.vmware.ca_file}: {error}") from error


class _Stub(SoapStubAdapter):  # type: ignore[misc] # without type annotations
    """The connections to vCenter. Requests raise exceptions of Nova instead of those of pyVmomi."""

    def __init__(self) -> None:
        options = CONF.vmware
        super().__init__(host=options.host_ip, port=options.host_port, version=_VERSION, sslContext=tls_context(),
                         poolSize=options.connection_pool_size, connectionPoolTimeout=_IDLE_SECONDS,
                         httpConnectionTimeout=options.request_timeout)
        self._login_lock = threading.Lock()
        self._logins = 0
        self.closed = False

    def InvokeMethod(self, mo: Any, info: Any, args: Any, outerStub: Any = None) -> Any:
        logins = self._logins
        try:
            return self._repeated(mo, info, args, outerStub)
        except vim.fault.NotAuthenticated:
            if info.wsdlName == "Logout" or self.closed:
                raise exception.HypervisorUnavailable(reason="the session with vCenter is closed") from None
        except vmodl.MethodFault as fault:
            raise errors.translate(fault) from fault
        self._log_in_again(logins)
        try:
            return self._repeated(mo, info, args, outerStub)
        except vmodl.MethodFault as fault:
            raise errors.translate(fault) from fault

    def log_in(self) -> None:
        """Log in. Raises InvalidInput if vCenter refuses the user or the password, and HypervisorUnavailable."""
        with self._login_lock:
            self._log_in()

    def _log_in_again(self, logins: int) -> None:
        """Replace the session, unless another thread has done so. ``logins``: number of logins before the request."""
        with self._login_lock:
            if self._logins == logins:
                LOG.info("The session with vCenter %s has expired: logging in again", CONF.vmware.host_ip)
                self._log_in()

    def _log_in(self) -> None:
        manager: Any = vim.ServiceInstance("ServiceInstance", self).content.sessionManager
        try:
            manager.Login(CONF.vmware.host_username, CONF.vmware.host_password, None)
        except errors.VCenterFault as error:
            if error.is_a(vim.fault.InvalidLogin):
                raise exception.InvalidInput(reason=f"vCenter {CONF.vmware.host_ip} refuses [vmware]host_username and "
                                                    "host_password") from error
            raise
        self._logins += 1

    def _repeated(self, mo: Any, info: Any, args: Any, outer: Any) -> Any:
        retries = CONF.vmware.api_retry_count if info.wsdlName in _QUERIES else 0
        while True:
            try:
                return super().InvokeMethod(mo, info, args, outer)
            except ssl.SSLCertVerificationError as error:
                raise exception.HypervisorUnavailable(reason=(
                    f"the certificate of vCenter {CONF.vmware.host_ip} is not valid: {error.verify_message} "
                    "([vmware]ca_file)")) from error
            except errors.BROKEN as error:
                if retries <= 0 or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise exception.HypervisorUnavailable(
                        reason=f"vCenter {CONF.vmware.host_ip}: {info.wsdlName} failed: {error!r}") from error
                retries -= 1
                time.sleep(_RETRY_INTERVAL)


class VCenter:
    """A session with vCenter. Methods raise HypervisorUnavailable, VCenterFault and DiskFull."""

    def __init__(self) -> None:
        self._stub: _Stub | None = None
        self._content: Any = None

    def start(self) -> None:
        """Log in. Raises InvalidInput (a missing option, or a refused password), HypervisorUnavailable."""
        for option in ("host_ip", "host_username", "host_password", "cluster_name"):
            if not CONF.vmware[option]:
                raise exception.InvalidInput(reason=f"the driver vmware needs the option [vmware]{option}")
        stub = _Stub()
        # Read before the login, after which nothing may fail: stop() logs out only after this method has succeeded.
        content = vim.ServiceInstance("ServiceInstance", stub).RetrieveContent()
        stub.log_in()
        self._stub, self._content = stub, content

    def stop(self) -> None:
        """Log out; requests of other threads fail. Waits at most _LOGOUT_SECONDS: a vCenter that does not respond ends
        the idle session by itself."""
        stub, self._stub = self._stub, None
        if stub is not None:
            stub.closed = True
            leaving = threading.Thread(target=self._log_out, args=(stub,), name="vmware-logout", daemon=True)
            leaving.start()
            leaving.join(_LOGOUT_SECONDS)

    def _log_out(self, stub: _Stub) -> None:
        with contextlib.suppress(exception.NovaException):
            self._content.sessionManager.Logout()
        stub.DropConnections()

    @property
    def content(self) -> Any:
        """Return the root objects of the API."""
        if self._stub is None:
            raise exception.HypervisorUnavailable(reason="there is no session with vCenter")
        return self._content

    @property
    def uuid(self) -> str:
        return str(self.content.about.instanceUuid)

    def reference(self, kind: type, identity: str) -> Any:
        """Return the managed object of this type and id. Does not check that the object exists."""
        return kind(identity, self._stub)

    # --- properties --------------------------------------------------------------------------------
    def properties(self, objects: Sequence[Any], paths: Sequence[str]) -> dict[Any, dict[str, Any]]:
        """Return the properties of objects of one type, by object. Objects that do not exist are omitted; unset
        properties are None."""
        if not objects:
            return {}
        return self._retrieve([vmodl.query.PropertyCollector.ObjectSpec(obj=item) for item in objects],
                              type(objects[0]), paths)

    def get(self, item: Any, *paths: str) -> dict[str, Any]:
        """Return properties of one object. Raises VCenterFault (see errors.is_missing) if the object does not exist."""
        result = self.properties([item], paths)
        if item not in result:
            raise errors.translate(vmodl.fault.ManagedObjectNotFound(obj=item, msg=f"{item} does not exist"))
        return result[item]

    def contained(self, container: Any, kind: type, paths: Sequence[str]) -> dict[Any, dict[str, Any]]:
        """Return the properties of all objects of this type in a folder, cluster or resource pool."""
        view = self.content.viewManager.CreateContainerView(container, [kind], True)
        try:
            return self._retrieve([view_spec(view)], kind, paths)
        finally:
            view.DestroyView()

    def _retrieve(self, objects: Sequence[Any], kind: type, paths: Sequence[str]) -> dict[Any, dict[str, Any]]:
        query, collector = vmodl.query.PropertyCollector, self.content.propertyCollector
        spec = query.FilterSpec(objectSet=list(objects), reportMissingObjectsInResults=True,
                                propSet=[query.PropertySpec(type=kind, pathSet=list(paths), all=False)])
        try:
            answer = collector.RetrievePropertiesEx([spec], query.RetrieveOptions(
                maxObjects=CONF.vmware.maximum_objects))
        except errors.VCenterFault as error:
            if errors.is_missing(error):
                return {}
            raise
        result: dict[Any, dict[str, Any]] = {}
        while answer is not None:
            for item in answer.objects:
                result[item.obj] = dict.fromkeys(paths) | {entry.name: entry.val for entry in item.propSet}
            answer = collector.ContinueRetrievePropertiesEx(answer.token) if answer.token else None
        return result

    # --- tasks -------------------------------------------------------------------------------------
    def wait(self, task: Any, timeout: float | None = None) -> Any:
        """Return the result of a task. Raises the errors of the task. After ``timeout`` seconds (None: task_timeout)
        cancels the task and raises HypervisorUnavailable. Also raises HypervisorUnavailable, without cancelling the
        task, if vCenter does not respond for _SILENCE seconds."""
        deadline = time.monotonic() + (CONF.vmware.task_timeout if timeout is None else timeout)
        interval, responded = min(0.05, CONF.vmware.task_poll_interval), time.monotonic()
        while True:
            try:
                # Read parts of the property "info": the whole has an object of an invalid type in vCenter's simulator.
                state = self.get(task, "info.state", "info.error", "info.result")
                responded = time.monotonic()
            except exception.HypervisorUnavailable:
                if self._stub is None or time.monotonic() > min(deadline, responded + _SILENCE):
                    raise
                time.sleep(_RETRY_INTERVAL)
                continue
            if state["info.state"] == "success":
                return state["info.result"]
            if state["info.state"] == "error":
                raise errors.translate(state["info.error"])
            if time.monotonic() > deadline:
                with contextlib.suppress(exception.NovaException):
                    task.CancelTask()
                raise exception.HypervisorUnavailable(reason="a task of vCenter has taken too long and was cancelled "
                                                             "([vmware]task_timeout)")
            time.sleep(interval)
            interval = min(interval * 1.5, CONF.vmware.task_poll_interval)

    # --- files -------------------------------------------------------------------------------------
    def upload(self, path: str, datacenter: str, datastore: str, name: str) -> None:
        """Write a local file to a datastore; replace an existing file. ``datacenter``: path in vCenter's inventory."""
        query = urllib.parse.urlencode({"dcPath": datacenter, "dsName": datastore})
        target = f"/folder/{urllib.parse.quote(name)}?{query}"
        with open(path, "rb") as file:
            for last in (False, True):
                file.seek(0)
                status = self._put(file, target)
                if status in (200, 201, 204):
                    return
                if status != http.client.UNAUTHORIZED or last:
                    raise errors.VCenterFault(reason=f"upload of {name} to datastore {datastore} failed: HTTP {status}")
                self.content.rootFolder.childEntity  # noqa: B018 - a query, which replaces an expired session

    def _put(self, file: BinaryIO, target: str) -> int:
        with _https(CONF.vmware.host_ip, CONF.vmware.host_port) as connection:
            assert self._stub is not None
            connection.request("PUT", target, body=file, headers={
                "Content-Length": str(os.fstat(file.fileno()).st_size), "Cookie": self._stub.cookie,
                "Content-Type": "application/octet-stream"})
            answer = connection.getresponse()
            answer.read(_CHUNK)
            return int(answer.status)

    def export(self, machine: Any, path: str, most: int, check: Callable[[], None]) -> None:
        """Write the only disk of a machine as a streamOptimized VMDK to a local file of at most ``most`` bytes.
        ``check`` is called repeatedly; if it raises an error, the download is cancelled."""
        lease = machine.ExportVm()
        try:
            info = self._ready(lease)
            urls = [item.url for item in info.deviceUrl if item.disk]
            if len(urls) != 1:
                raise exception.InvalidDiskInfo(reason=f"vCenter offers {len(urls)} disks instead of one")
            with open(path, "wb") as file:
                for written in self._download(urls[0], file, lease, check):
                    if written > most:
                        raise exception.InvalidDiskInfo(reason="the exported disk is larger than the server's disk")
            lease.HttpNfcLeaseComplete()
        except BaseException:
            with contextlib.suppress(exception.NovaException):
                lease.HttpNfcLeaseAbort()
            raise

    def _ready(self, lease: Any) -> Any:
        deadline = time.monotonic() + CONF.vmware.request_timeout
        while True:
            state = self.get(lease, "state", "error", "info")
            if state["state"] == "ready":
                return state["info"]
            if state["state"] == "error" or time.monotonic() > deadline:
                raise errors.translate(state["error"]) if state["error"] else exception.HypervisorUnavailable(
                    reason="vCenter did not prepare the download of a disk within [vmware]request_timeout")
            time.sleep(CONF.vmware.task_poll_interval)

    @staticmethod
    def _download(url: str, file: BinaryIO, lease: Any, check: Callable[[], None]) -> Iterator[int]:
        parts = urllib.parse.urlsplit(url)
        host = CONF.vmware.host_ip if parts.hostname in ("*", None) else parts.hostname
        port = parts.port or (CONF.vmware.host_port if parts.hostname in ("*", None) else 443)
        with _https(host, port) as connection:
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise errors.VCenterFault(reason=f"download of a disk failed: HTTP {answer.status}")
            written, reported = 0, time.monotonic()
            while chunk := answer.read(_CHUNK):
                check()
                file.write(chunk)
                written += len(chunk)
                yield written
                if time.monotonic() - reported > _LEASE_INTERVAL:
                    lease.HttpNfcLeaseProgress(50)
                    reported = time.monotonic()
            if answer.length:  # read() does not report a connection that ended early
                raise errors.VCenterFault(reason=f"download of a disk ended early: {answer.length} bytes are missing")


def view_spec(view: Any) -> Any:
    """Return the specification of all objects of a container view."""
    query = vmodl.query.PropertyCollector
    return query.ObjectSpec(obj=view, skip=True, selectSet=[query.TraversalSpec(
        name="view", type=type(view), path="view", skip=False)])


@contextlib.contextmanager
def _https(host: str, port: int) -> Iterator[http.client.HTTPSConnection]:
    """Yield a connection. Connection errors in the block are raised as HypervisorUnavailable."""
    connection = http.client.HTTPSConnection(host, port, timeout=CONF.vmware.request_timeout, context=tls_context())
    try:
        yield connection
    except errors.BROKEN as error:
        raise exception.HypervisorUnavailable(reason=f"file transfer with {host} failed: {error!r}") from error
    finally:
        connection.close()


def options(items: Iterable[Any] | None) -> dict[str, str]:
    """Return the extraConfig of a machine as a dictionary."""
    return {item.key: str(item.value) for item in items or ()}
