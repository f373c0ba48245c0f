"""Manifests of the components, as the folder ``install`` contains them, and their application to a cluster."""

import asyncio
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nova.common.errors import Invalid, ReportedError
from nova.federator.client import kustomize
from nova.federator.kube.client import Api, ApiError, Object

INSTALL = pathlib.Path(__file__).parent.parent / "install"
MANAGER = "novactl"  # field manager
PUBLIC_HOST = "NOVA_API_PUBLIC_HOST_OVERRIDE"  # environment variable of novactl and of the scheduler
# Workloads of the control plane in the order in which they start: (plural, name, name that users see).
COMPONENTS = (("statefulsets", "etcd", "ETCD"), ("deployments", "apiserver", "API Server"),
              ("deployments", "kube-controller-manager", "Kube-controller-manager"),
              ("deployments", "nova-scheduler", "Nova scheduler"))
_IMAGE = "elotl/nova-federator"
_CREATED = {"app.kubernetes.io/managed-by": "novactl"}  # label of namespaces that novactl created
_POLL = 0.5  # seconds between two checks
_VALID_NAMESPACE = "elotl"  # the namespace in the manifests


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the manifests. ``repository``, ``tag``: of Nova's image; empty for those of this release.
    ``replicas``: 3 for a highly available control plane. ``cluster``: name of the workload cluster of an agent.
    ``public_host``: host of the Nova API server, if its Service has no load balancer. ``timeout``: seconds to wait for
    the address of the Service, then for each component to be ready, and for the first response of the API server."""

    namespace: str = _VALID_NAMESPACE
    repository: str = ""
    tag: str = ""
    replicas: int = 1
    cluster: str = ""
    public_host: str = ""
    timeout: float = 360.0


def service(settings: Settings) -> list[Object]:
    """Return the Service that makes the Nova API server reachable."""
    return [_placed(obj, settings.namespace) for obj in kustomize.read(INSTALL / "base/control-plane/apiserver.yaml")]


def custom_resources() -> list[Object]:
    """Return the CustomResourceDefinitions for the Nova API server."""
    return kustomize.read(INSTALL / "base/control-plane/nova_crds.yaml")


def control_plane(settings: Settings) -> list[Object]:
    """Return the components of the control plane, with the optional ones that their kustomization names."""
    return _adapted(INSTALL / ("overlays/cp-ha" if settings.replicas > 1 else "base/control-plane"), settings)


def agent(settings: Settings) -> list[Object]:
    """Return the objects of the agent of a workload cluster."""
    objects = _adapted(INSTALL / "base/agent", settings)
    for obj in objects:
        if obj["kind"] == "Deployment":
            container = obj["spec"]["template"]["spec"]["containers"][0]
            container["args"] = [f"--cluster-name={settings.cluster}" if argument.startswith("--cluster-name=")
                                 else argument for argument in container["args"]]
    return objects


async def create_namespace(api: Api, name: str) -> None:
    """Create a namespace unless it exists. Raises ApiError."""
    labels = {"kubernetes.io/metadata.name": name, **_CREATED}  # newer API servers set the first label themselves
    await api.ensure("/api/v1/namespaces", {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


async def created_namespace(api: Api, name: str) -> Object | None:
    """Return a namespace that novactl created, or None. Raises ApiError."""
    stored = await api.find(f"/api/v1/namespaces/{name}")
    return stored if stored and _CREATED.items() <= (stored["metadata"].get("labels") or {}).items() else None


async def delete_namespace(api: Api, name: str) -> bool:
    """Delete a namespace that novactl created, with its content. Return False if the namespace stays, because another
    client created it. Raises ApiError."""
    if stored := await created_namespace(api, name):
        await api.delete(f"/api/v1/namespaces/{name}", uid=stored["metadata"]["uid"])
        return True
    return await api.find(f"/api/v1/namespaces/{name}") is None


async def apply(api: Api, objects: Iterable[Object]) -> None:
    """Apply objects, in order. Repeatable. Raises ApiError."""
    for obj in objects:
        await api.apply(await _path(api, obj), obj, MANAGER, force=True)


async def delete(api: Api, objects: Iterable[Object]) -> None:
    """Delete objects, in order; succeeds for objects that do not exist. Raises ApiError."""
    for obj in objects:
        await api.remove(await _path(api, obj), "Foreground")


def shortfall(workload: Mapping[str, Any]) -> str:
    """Return the reason why a Deployment or StatefulSet is not ready in its present version, or an empty text."""
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    wanted = spec.get("replicas", 1)
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return "its controller has not processed the newest change yet"
    if status.get("updatedReplicas", 0) < wanted:
        return f"{status.get('updatedReplicas', 0)} of {wanted} replicas are updated"
    if status.get("readyReplicas", 0) < wanted:
        return f"{status.get('readyReplicas', 0)} of {wanted} replicas are ready"
    if status.get("replicas", 0) > wanted:
        return f"{status['replicas'] - wanted} replicas of the previous version still run"
    return ""


async def wait_ready(api: Api, namespace: str, plural: str, name: str, timeout: float) -> None:
    """Wait until a Deployment or StatefulSet is ready in its present version. Raises ReportedError with the reason."""
    deadline, reason = time.monotonic() + timeout, ""
    while time.monotonic() < deadline:
        try:
            workload = await api.get(f"/apis/apps/v1/namespaces/{namespace}/{plural}/{name}")
            reason = shortfall(workload)
            if not reason:
                return
        except ApiError as error:
            reason = error.message
        await asyncio.sleep(_POLL)
    raise ReportedError(f"{name} in namespace {namespace} was not ready within {timeout:.0f} s: {reason}.")


async def _path(api: Api, obj: Object) -> str:
    resource = await api.resource(obj["apiVersion"], obj["kind"])
    if resource is None:
        raise Invalid(f"{api.config.server} does not serve {obj['kind']} of {obj['apiVersion']}.")
    return resource.path(obj["metadata"].get("namespace") or "", obj["metadata"]["name"])


def _adapted(folder: pathlib.Path, settings: Settings) -> list[Object]:
    objects = [_placed(obj, settings.namespace) for obj in kustomize.build(folder)]
    for obj in objects:
        if obj["kind"] == "Deployment":
            for container in obj["spec"]["template"]["spec"]["containers"]:
                _replace_image(container, settings)
    return objects


def _placed(obj: Object, name: str) -> Object:
    """Set the namespace of an object, unless it is cluster-scoped, and of the service accounts that it binds."""
    if not obj["kind"].startswith("Cluster"):
        obj["metadata"]["namespace"] = name
    for subject in obj.get("subjects", ()):
        subject["namespace"] = name
    return obj


def _replace_image(container: dict[str, Any], settings: Settings) -> None:
    image, _colon, tag = container["image"].rpartition(":")
    if image == _IMAGE:
        container["image"] = f"{settings.repository or image}:{settings.tag or tag}"
    for variable in container.get("env", ()):
        if variable["name"] == "AGENT_IMAGE_REPO" and settings.repository:
            variable["value"] = settings.repository
        if variable["name"] == "AGENT_IMAGE_TAG" and settings.tag:
            variable["value"] = settings.tag
        if variable["name"] == PUBLIC_HOST:
            variable["value"] = settings.public_host
