"""Installation of the control plane into a hosting cluster, and of agents into workload clusters."""

import asyncio
import base64
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from nova.common.errors import Invalid, Refused, ReportedError
from nova.federator.api.names import CLUSTER_GROUP, VERSION
from nova.federator.client import certificates, manifests
from nova.federator.client.certificates import CertificateOptions
from nova.federator.client.manifests import Settings
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.config import Kubeconfig, decode

INIT = "nova-cluster-init-kubeconfig"  # the Secret with the kubeconfig with which an agent joins
CLUSTERS = f"/apis/{CLUSTER_GROUP}/{VERSION}/clusters"
_POLL = 0.5  # seconds between two checks

Reporter = Callable[[str], None]  # prints a line of progress
Connect = Callable[[Kubeconfig], Api]


class Address(NamedTuple):
    """The address at which users and agents reach the Nova API server."""

    host: str
    port: int = 443

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}{'' if self.port == 443 else f':{self.port}'}"


def address_of(service: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Address | None:
    """Return the address of the Service apiserver, or None while it has none. The environment variable that
    manifests.PUBLIC_HOST names replaces the host, for hosting clusters without load balancers."""
    spec, port = service.get("spec") or {}, 443
    ports = spec.get("ports") or [{}]
    if spec.get("type") == "NodePort":
        port = int(ports[0].get("nodePort") or 443)
    if override := environment.get(manifests.PUBLIC_HOST):
        return Address(override, port)
    for entry in ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
        if host := entry.get("ip") or entry.get("hostname"):
            return Address(host, port)
    return None


async def kubeconfig(hosting: Api, namespace: str) -> Kubeconfig:
    """Return the administrator's kubeconfig of a control plane. Raises Invalid if the control plane has no address or
    no certificates."""
    service = await hosting.find(f"/api/v1/namespaces/{namespace}/services/apiserver")
    if service is None:
        raise Invalid(f"Namespace {namespace} of {hosting.config.server} has no Service apiserver: is this the hosting"
                      " cluster, and its namespace?")
    address = address_of(service)
    if address is None:
        raise Invalid("The Service apiserver has no external address yet: does the hosting cluster have a load"
                      " balancer?")
    path = f"/api/v1/namespaces/{namespace}/secrets/{certificates.CONTROL_PLANE}"
    stored = await hosting.find(path)
    if stored is None:
        raise Invalid(f"Namespace {namespace} has no Secret {certificates.CONTROL_PLANE}: install certificates first.")
    return certificates.administrator(stored, address.url)


async def install_control_plane(hosting: Api, name: str, settings: Settings, connect: Connect, report: Reporter,
                                save: Callable[[Kubeconfig], None]) -> None:
    """Install a control plane, or complete an interrupted installation. ``save``: stores the administrator's
    kubeconfig. Raises ReportedError, ApiError."""
    settings = msgspec.structs.replace(settings, public_host=os.environ.get(manifests.PUBLIC_HOST, ""))
    report("Installing Nova Control Plane...")
    report(f"Cluster name - {name}")
    report(f"Creating namespace {settings.namespace} in control plane")
    await manifests.create_namespace(hosting, settings.namespace)
    await manifests.apply(hosting, _node_port(manifests.service(settings)))
    report("Creating certificates")
    address = await _wait_address(hosting, settings.namespace, settings.timeout)
    await _install_certificates(hosting, settings.namespace, address, report)
    report("Installing Kube API Server...")
    await manifests.apply(hosting, manifests.control_plane(settings))
    for plural, component, _title in manifests.COMPONENTS[:2]:
        await manifests.wait_ready(hosting, settings.namespace, plural, component, settings.timeout)
    config = await kubeconfig(hosting, settings.namespace)
    save(config)
    report("Installing Nova Custom Resource Definitions...")
    async with connect(config) as nova:
        await _install_custom_resources(nova, settings.timeout)
    for plural, component, _title in manifests.COMPONENTS[2:]:
        await manifests.wait_ready(hosting, settings.namespace, plural, component, settings.timeout)
    report("Nova Control Plane installed.")


async def uninstall_control_plane(hosting: Api, settings: Settings) -> bool:
    """Remove a control plane with its certificates and its address. The copies in workload clusters stay. Return False
    if the namespace, with the volumes of etcd, stays because novactl did not create it. Raises ApiError, or Refused if
    the namespace has no control plane: objects in it, for example an etcd, do not belong to Nova."""
    mark = certificates.secret(certificates.CONTROL_PLANE, settings.namespace, {})  # deleted last
    if not (await hosting.find(f"/api/v1/namespaces/{settings.namespace}/secrets/{certificates.CONTROL_PLANE}")
            or await manifests.created_namespace(hosting, settings.namespace)):
        raise Refused(f"Namespace {settings.namespace} of {hosting.config.server} has no Nova control plane.")
    await manifests.delete(hosting, manifests.control_plane(settings))
    for name in (certificates.ETCD, certificates.KUBECONFIG, certificates.SIGNING):
        await manifests.delete(hosting, [certificates.secret(name, settings.namespace, {})])
    await manifests.delete(hosting, [*manifests.service(settings), mark])
    return await manifests.delete_namespace(hosting, settings.namespace)


async def check_agent(workload: Api, settings: Settings, nova: Api | None) -> None:
    """Refuse a cluster name that exists in Nova, and a namespace that has an agent. NOVA_EXIT_IF_CLUSTER_EXISTS=false
    skips the checks. ``nova``: None if the caller has no access to the control plane. Raises Refused."""
    if os.environ.get("NOVA_EXIT_IF_CLUSTER_EXISTS", "true").lower() == "false":
        return
    if nova and await nova.find(f"{CLUSTERS}/{settings.cluster}"):
        raise Refused(f"{settings.cluster} already exists in Nova, please choose another name.")
    path = f"/apis/apps/v1/namespaces/{settings.namespace}/deployments/nova-agent"
    if deployment := await workload.find(path):
        raise Refused(f"Namespace {settings.namespace} of {workload.config.server} already has the agent of cluster"
                      f" {_cluster_name(deployment)}.")


async def install_agent(workload: Api, settings: Settings, init: Kubeconfig) -> None:
    """Install an agent that joins with the kubeconfig ``init``. Raises ApiError."""
    secret = certificates.secret(INIT, settings.namespace, {"kubeconfig": init.render("nova-agent").encode()})
    await manifests.create_namespace(workload, settings.namespace)
    await manifests.apply(workload, [secret, *manifests.agent(settings)])


async def uninstall_agent(workload: Api, settings: Settings) -> None:
    """Remove an agent, its credentials, and its namespace if novactl created it. Raises Refused if the namespace has
    the agent of another cluster, or if the cluster's agent is in another namespace: it would lose its rights."""
    path = f"/apis/apps/v1/namespaces/{settings.namespace}/deployments/nova-agent"
    deployment = await workload.find(path)
    if deployment and _cluster_name(deployment) != settings.cluster:
        raise Refused(f"The agent in namespace {settings.namespace} of {workload.config.server} belongs to cluster"
                      f" {_cluster_name(deployment)}, not to {settings.cluster}.")
    binding = await workload.find("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nova-agent") or {}
    namespaces = [str(subject.get("namespace")) for subject in binding.get("subjects") or ()]
    if not deployment and namespaces and settings.namespace not in namespaces:
        raise Refused(f"The agent of {workload.config.server} is in namespace {', '.join(namespaces)}, not"
                      f" {settings.namespace}.")
    await manifests.delete(workload, reversed(manifests.agent(settings)))
    for name in (INIT, "nova-agent-credentials"):
        await manifests.delete(workload, [certificates.secret(name, settings.namespace, {})])
    await manifests.delete_namespace(workload, settings.namespace)


def _cluster_name(deployment: Mapping[str, Any]) -> str:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    arguments = [argument for container in containers for argument in container.get("args") or ()]
    return next((argument.removeprefix("--cluster-name=") for argument in arguments
                 if argument.startswith("--cluster-name=")), "unknown")


def _node_port(objects: list[Object]) -> list[Object]:
    """Change the Service for a hosting cluster without load balancers if APISERVER_SERVICE_NODEPORT is set."""
    port = os.environ.get("APISERVER_SERVICE_NODEPORT", "")
    if port:
        if not port.isdigit() or not 1 <= int(port) <= 65535:
            raise Invalid(f"APISERVER_SERVICE_NODEPORT: {port[:20]!r} is not a port.")
        for obj in objects:
            obj["spec"]["type"] = "NodePort"
            obj["spec"]["ports"][0]["nodePort"] = int(port)
    return objects


async def _wait_address(hosting: Api, namespace: str, timeout: float) -> Address:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        address = address_of(await hosting.get(f"/api/v1/namespaces/{namespace}/services/apiserver"))
        if address:
            return address
        await asyncio.sleep(_POLL)
    raise ReportedError(f"The Service apiserver got no external address within {timeout:.0f} s: does the"
                        " hosting cluster have a load balancer? Set NOVA_API_PUBLIC_HOST_OVERRIDE if not.")


async def _install_certificates(hosting: Api, namespace: str, address: Address, report: Reporter) -> None:
    """Create the Secrets, unless they exist: components and agents trust the authorities of existing certificates."""
    collection = f"/api/v1/namespaces/{namespace}/secrets"
    names = (certificates.CONTROL_PLANE, certificates.ETCD, certificates.KUBECONFIG, certificates.SIGNING)
    stored = [name for name in names if await hosting.find(f"{collection}/{name}")]
    if certificates.CONTROL_PLANE in stored:
        if missing := [name for name in names if name not in stored]:
            raise Refused(f"Namespace {namespace} has the Secret {certificates.CONTROL_PLANE}, but not"
                          f" {', '.join(missing)}: delete {certificates.CONTROL_PLANE} to create all of them again.")
        return
    report("Generating certificates")
    created = certificates.secrets(CertificateOptions(
        endpoint=address.host, namespace=namespace, node=os.environ.get("NOVA_NODE_IP", "")))
    report("Certificates successfully generated.")
    await manifests.apply(hosting, reversed(created))  # nova-cert is the last one: it marks that all exist


async def _install_custom_resources(nova: Api, timeout: float) -> None:
    """Install the custom resources as soon as the API server responds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            await manifests.apply(nova, manifests.custom_resources())
            return
        except ApiError as error:
            if time.monotonic() > deadline or 400 <= error.status < 500:
                raise
        await asyncio.sleep(_POLL)


def encode_init(config: Kubeconfig) -> str:
    """Return the kubeconfig with which an agent joins, as a single word for a command line."""
    return base64.b64encode(config.render("nova-agent").encode()).decode()


def decode_init(text: str) -> Kubeconfig:
    """Return the kubeconfig that :func:`encode_init` encoded. Raises Invalid."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        raise Invalid("--init-kubeconfig: not the text that 'novactl join-command' prints.") from None
    return decode(content, "--init-kubeconfig")
