"""Registration of workload clusters: certificate requests are checked against their requester, then the Cluster, its
namespace and the rights of its agent are created and the certificate is signed."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from cryptography import x509

from nova.common.errors import Invalid, ReportedError
from nova.federator.api import times
from nova.federator.api.names import (
    AGENT_USER,
    AGENTS_GROUP,
    CLUSTER_GROUP,
    CLUSTER_NAME,
    DRAIN_FINALIZER,
    HEARTBEAT,
    NAME_LABEL,
    ORIGINAL_NAME,
    PIN,
    REPORT,
    SCHEDULE_GROUP,
    SIGNER,
    VERSION,
    cluster_namespace,
)
from nova.federator.controllers.signing import Authority, requested_cluster
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer

LOG = logging.getLogger(__name__)
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLUSTERS = f"/apis/{CLUSTER_GROUP}/{VERSION}/clusters"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOINERS = "system:bootstrappers:nova"  # the group of bootstrap tokens of agents
_USED = "nova.elotl.co/used"  # annotation of a one-time token: the request that the token has authorized
_TOKEN_GRACE = 30.0  # seconds after which a used token is deleted
_APPROVED = "NovaApproved"  # reason of the condition
_ROLE = "nova-agent"  # name of the Role of an agent in the namespace of its cluster


class Joining:
    """Decides on the certificate requests of agents. A request that cannot be decided now is tried again.
    ``authority``: returns the present authority, whose files may be replaced; raises Invalid."""

    def __init__(self, api: Api, authority: Callable[[], Authority]) -> None:
        self.api, self.authority = api, authority
        self.requests = Informer(api, REQUESTS, lambda obj: obj, self._changed,
                                 fieldSelector=f"spec.signerName={SIGNER}")
        self._open: asyncio.Queue[str] = asyncio.Queue()
        self._used: asyncio.Queue[str] = asyncio.Queue()  # names of Secrets of used tokens

    def _changed(self, key: str, new: Object | None, _old: Object | None) -> None:
        if new is not None and (not (new.get("status") or {}).get("conditions") or _unsigned(new)):
            self._open.put_nowait(key)

    async def run(self) -> None:
        """Decide on requests until cancelled."""
        await self._grant()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._remove_used_tokens())
            tasks.create_task(self._decide_on_requests())

    async def _decide_on_requests(self) -> None:
        while True:
            name = await self._open.get()
            request = self.requests.objects.get(name)
            if request is None:
                continue
            try:
                await self._decide(request)
            except ReportedError as error:
                if not isinstance(error, ApiError) or not (error.missing or error.conflict):
                    LOG.warning("Cannot approve or deny certificate request %s, retrying: %s", name, error)
                    asyncio.get_running_loop().call_later(2.0, self._open.put_nowait, name)
            except Exception:  # a malformed request must not stop the scheduler
                LOG.exception("Unexpected error in certificate request %s, ignoring it until it changes", name)

    async def _grant(self) -> None:
        """Let holders of bootstrap tokens and agents request certificates. Repeated until it succeeds."""
        rules = [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                  "verbs": ["create", "get"]}]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules,
                "metadata": {"name": "nova-joiner"}}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                   "metadata": {"name": "nova-joiner"},
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nova-joiner"},
                   "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
                                for name in (JOINERS, AGENTS_GROUP)]}
        while True:
            try:
                await self.api.ensure(f"{_RBAC}/clusterroles", role)
                await self.api.ensure(f"{_RBAC}/clusterrolebindings", binding)
                await self._update_rights()
                return
            except ApiError as error:
                LOG.warning("Cannot create the RBAC rules of joining agents, retrying: %s", error)
                await asyncio.sleep(2.0)

    async def _update_rights(self) -> None:
        """Give the agents that joined under an earlier release the rights of this release."""
        for role in (await self.api.list(f"{_RBAC}/roles", fieldSelector=f"metadata.name={_ROLE}"))["items"]:
            namespace = role["metadata"]["namespace"]
            if namespace.startswith("nova-cluster-") and role.get("rules") != agent_rules():
                await self.api.patch(f"{_RBAC}/namespaces/{namespace}/roles/{_ROLE}", {"rules": agent_rules()})

    async def _decide(self, request: Object) -> None:
        spec, path = request["spec"], f"{REQUESTS}/{request['metadata']['name']}"
        try:
            cluster, parsed = requested_cluster(spec)
            if not CLUSTER_NAME.fullmatch(cluster):
                raise Invalid(f"The name of the cluster {cluster[:80]!r} is not a DNS name of at most 63 characters.")
            token = await self._authorize(request, cluster)
            await prepare(self.api, cluster)
        except Invalid as error:
            LOG.warning("Denied certificate request %s of user %s: %s", request["metadata"]["name"],
                        spec.get("username"), error.message)
            await self._condition(request, "Denied", error.message)
            return
        certificate = self._sign(parsed)  # before the approval: if the authority cannot sign, the token stays unused
        approved = request if _unsigned(request) else await self._condition(
            request, "Approved", f"The agent of cluster {cluster} may join.")
        if token:  # before the certificate exists, so that a token is never used twice
            used = {_USED: request["metadata"]["name"]}
            await self.api.patch(f"{TOKENS}/{token}", {"metadata": {"annotations": used}})
        status = {**approved["status"], "certificate": base64.b64encode(certificate).decode()}
        await self.api.replace(f"{path}/status", {**approved, "status": status})
        if token:  # deleted after a delay, because the agent still polls with it
            asyncio.get_running_loop().call_later(_TOKEN_GRACE, self._used.put_nowait, token)
        await self._remove_old(cluster, request["metadata"]["name"])
        LOG.info("Cluster %s: signed the certificate of the agent", cluster)

    async def _remove_old(self, cluster: str, latest: str) -> None:
        """Delete the decided requests of a cluster except the newest: the control plane has no controller for that."""
        for name, obj in list(self.requests.objects.items()):
            decided = (obj.get("status") or {}).get("conditions")
            with contextlib.suppress(Invalid):
                if name != latest and decided and requested_cluster(obj["spec"])[0] == cluster:
                    await self.api.remove(f"{REQUESTS}/{name}")

    async def _remove_used_tokens(self) -> None:
        while True:
            name = await self._used.get()
            try:
                await self.api.remove(f"{TOKENS}/{name}")
            except ApiError as error:
                LOG.warning("Cannot delete the used bootstrap token %s, retrying: %s", name, error)
                asyncio.get_running_loop().call_later(_TOKEN_GRACE, self._used.put_nowait, name)

    def _sign(self, parsed: x509.CertificateSigningRequest) -> bytes:
        try:
            return self.authority().sign(parsed)
        except Invalid as error:  # the files of the authority are unusable: retry the request later
            raise ReportedError(error.message) from None

    async def _authorize(self, request: Object, cluster: str) -> str:
        """Return the name of the Secret of a token to remove after its use, or an empty text. Raises Invalid if the
        requester may not become the agent of the cluster."""
        user, name = str(request["spec"].get("username") or ""), request["metadata"]["name"]
        if user == f"{AGENT_USER}{cluster}":
            return ""  # a renewal
        prefix, _colon, token = user.rpartition(":")
        if prefix != "system:bootstrap":
            raise Invalid(f"User {user} may not request the certificate of cluster {cluster}.")
        secret = await self.api.find(f"{TOKENS}/bootstrap-token-{token}")
        if secret is None:
            raise Invalid(f"The bootstrap token {token} does not exist any more.")
        annotations = secret["metadata"].get("annotations") or {}
        bound = annotations.get(PIN)
        if annotations.get(_USED, name) != name:
            raise Invalid(f"The bootstrap token {token} was used already.")
        if bound is not None:
            if bound != cluster:
                raise Invalid(f"The bootstrap token {token} is for cluster {bound}, not for {cluster}.")
            return f"bootstrap-token-{token}"
        if not _unsigned(request) and await self._has_joined(cluster):
            raise Invalid(f"{cluster} already exists in Nova, please choose another name, or join again with a token of"
                          f" 'novactl join-command {cluster}'.")
        return ""

    async def _has_joined(self, cluster: str) -> bool:
        """Return True if a cluster exists and its agent has reported. An agent that ends before it has stored its
        certificate must be able to join again."""
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{cluster_namespace(cluster)}/leases/{HEARTBEAT}"
        return bool(await self.api.find(f"{CLUSTERS}/{cluster}") and await self.api.find(lease))

    async def _condition(self, request: Object, kind: str, message: str) -> Object:
        now = times.now()
        condition = {"type": kind, "status": "True", "reason": f"Nova{kind}", "message": message[:1000],
                     "lastUpdateTime": now, "lastTransitionTime": now}
        body = {**request, "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                "status": {**(request.get("status") or {}), "conditions": [condition]}}
        return await self.api.replace(f"{REQUESTS}/{request['metadata']['name']}/approval", body)


def _unsigned(request: Object) -> bool:
    """Return True for a request that a scheduler has approved but not signed, because the scheduler ended."""
    status = request.get("status") or {}
    return not status.get("certificate") and any(
        (entry.get("type"), entry.get("reason")) == ("Approved", _APPROVED) for entry in status.get("conditions") or ())


async def prepare(api: Api, cluster: str) -> None:
    """Create the objects that an agent needs in the control plane: the Cluster, its namespace and the agent's rights
    there. Repeatable. Raises Invalid if the namespace belongs to another cluster."""
    namespace = await prepare_namespace(api, cluster)
    created = await api.ensure(f"{_RBAC}/namespaces/{namespace}/roles", {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": _ROLE, "namespace": namespace}, "rules": agent_rules()})
    if not created:
        await api.patch(f"{_RBAC}/namespaces/{namespace}/roles/{_ROLE}", {"rules": agent_rules()})
    await api.ensure(f"{_RBAC}/namespaces/{namespace}/rolebindings", {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": _ROLE, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _ROLE},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{AGENT_USER}{cluster}"}]})
    await api.ensure(CLUSTERS, cluster_body(cluster))


def cluster_body(cluster: str) -> dict[str, Any]:
    """Return the Cluster object of a cluster that has not reported yet."""
    return {"apiVersion": f"{CLUSTER_GROUP}/{VERSION}", "kind": "Cluster",
            "metadata": {"name": cluster, "labels": {NAME_LABEL: cluster}, "finalizers": [DRAIN_FINALIZER]},
            "spec": {"name": cluster}}


async def prepare_namespace(api: Api, cluster: str) -> str:
    """Create the namespace of a cluster, and return the name of the namespace. Raises Invalid if the namespace belongs
    to another cluster."""
    namespace = cluster_namespace(cluster)
    await api.ensure("/api/v1/namespaces", {
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {NAME_LABEL: namespace}, "annotations": {ORIGINAL_NAME: cluster}}})
    owner = ((await api.get(f"/api/v1/namespaces/{namespace}"))["metadata"].get("annotations") or {}).get(ORIGINAL_NAME)
    if owner != cluster:
        raise Invalid(f"The namespace {namespace} belongs to {owner or 'a user'}: choose another name for {cluster}.")
    return namespace


def agent_rules() -> list[dict[str, Any]]:
    """Return all rights of an agent in the namespace of its cluster. In other namespaces it has no rights."""
    return [
        {"apiGroups": [SCHEDULE_GROUP], "resources": ["schedules"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [SCHEDULE_GROUP], "resources": ["schedules/status"], "verbs": ["patch", "update"]},
        {"apiGroups": [SCHEDULE_GROUP], "resources": ["backpropagations"],
         "verbs": ["get", "list", "create", "patch", "delete"]},
        {"apiGroups": [SCHEDULE_GROUP], "resources": ["clusterreports"], "verbs": ["create"]},
        {"apiGroups": [SCHEDULE_GROUP], "resources": ["clusterreports"], "resourceNames": [REPORT],
         "verbs": ["get", "update", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [HEARTBEAT],
         "verbs": ["get", "update", "patch"]}]
