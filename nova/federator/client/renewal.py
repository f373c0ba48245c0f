"""Renewal of all certificates with new authorities, in stages. Between the stages both authorities are trusted.

Stage 1 creates the new authorities (Secret nova-ca-next) and adds them to all lists of trusted certificates. Agents
read the published list and confirm it by a certificate request with its digest. Stage 2 replaces the certificates of
servers and clients, and the authority that signs agents' certificates. Stage 3, a separate call, removes the old
authorities, once all agents have new certificates. The state is in the Secrets alone, so each stage can be interrupted
and repeated.
"""

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable, Mapping

import msgspec
from cryptography import x509

from nova.common.errors import Invalid, Refused
from nova.federator.api import names
from nova.federator.api.names import AGENT_USER, AGENTS_GROUP, NAMESPACE, SIGNER, TRUSTED
from nova.federator.client import certificates, manifests
from nova.federator.client.certificates import AUTHORITIES, Authority, Files
from nova.federator.client.installation import CLUSTERS, INIT, Reporter
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig, decode

NEXT = "nova-ca-next"  # the Secret with the new authorities, between stage 1 and the end of stage 2
DIGEST = "nova.elotl.co/certificates"  # annotation of pods: a change restarts them
_TIMEOUT = 600.0  # timeout of the restart of a component, in seconds
_CONFIRMATION_TIMEOUT = 240.0  # seconds in which agents must confirm the new authorities; they check each minute
_RESTART_TIMEOUT = 180.0  # seconds in which the API server must respond after an interrupted restart
_POLL = 2.0  # seconds between two checks
_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
# Lists of trusted certificates: (Secret, file) -> name of the authority.
_BUNDLES = {(certificates.CONTROL_PLANE, "ca.crt"): "kubernetes-ca",
            (certificates.CONTROL_PLANE, "front-proxy-ca.crt"): "kubernetes-front-proxy-ca",
            (certificates.ETCD, "ca.crt"): "etcd-ca"}


class Renewal:
    """The renewal of the certificates of a control plane. ``connect``: opens the Nova API server with a kubeconfig of
    an administrator, perhaps at another address. Methods raise ReportedError and can be repeated."""

    def __init__(self, hosting: Api, namespace: str, connect: Callable[[Kubeconfig], Api], report: Reporter) -> None:
        self.hosting, self.namespace, self.connect, self.report = hosting, namespace, connect, report
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"

    async def renew(self, force: bool = False, timeout: float = _CONFIRMATION_TIMEOUT) -> None:
        """Run stages 1 and 2, or complete them. Raises Refused if an earlier renewal was not finished. Raises Refused
        between the stages if agents do not trust the new authorities within ``timeout`` seconds. ``force``: do not wait
        for the agents."""
        await self._wait_reachable()
        stored = await self._files(NEXT)
        if not stored:
            files = await self._files(certificates.CONTROL_PLANE)
            if len(certificates.split_bundle(files.get("ca.crt", b""))) > 1:
                raise Refused("The certificates were renewed, and the previous authorities are still trusted. Run"
                              " 'novactl certs renew --finish' first.")
            self.report("Creating new certificate authorities")
            created = certificates.create_authorities()
            stored = {f"{name}{suffix}": content for name, authority in created.items()
                      for suffix, content in ((".crt", authority.pem), (".key", authority.key_pem))}
            await self.hosting.create(self._collection, certificates.secret(NEXT, self.namespace, stored))
        following = {name: Authority.load(stored.get(f"{name}.crt", b""), stored.get(f"{name}.key", b""))
                     for name in AUTHORITIES}
        self.report("Adding the new authorities to the trusted certificates")
        for (secret, file), name in _BUNDLES.items():
            await self._trust(secret, file, following[name].pem)
        await self._publish()
        await self._restart()
        if not force:
            await self._wait_for_agents(timeout)
        self.report("Replacing the certificates of servers and clients")
        await self._issue(following)
        await self._restart()
        await self._publish()  # agents request certificates of the new authority
        await manifests.delete(self.hosting, [certificates.secret(NEXT, self.namespace, {})])
        self.report("Certificates renewed. Write new kubeconfig files with 'novactl get kubeconfig'. When all agents"
                    " have new certificates, run 'novactl certs renew --finish'.")

    async def finish(self) -> None:
        """Run stage 3. Raises Refused while stage 2 is incomplete or agents use certificates of the old authority."""
        if await self._files(NEXT):
            raise Refused("The renewal is incomplete. Run 'novactl certs renew' first.")
        await self._wait_reachable()
        signing = await self._files(certificates.SIGNING)
        current = signing.get("ca.crt", b"")
        files = await self._files(certificates.CONTROL_PLANE)
        overlap = len(certificates.split_bundle(files.get("ca.crt", b""))) > 1
        if overlap and (late := await self._late_agents(confirmation=False)):
            raise Refused(f"These clusters use certificates of the previous authority: {', '.join(late)}. Their agents"
                          " request new ones by themselves; repeat the command later.")
        self.report("Removing the previous authorities")
        for (secret, file), name in _BUNDLES.items():
            await self._distrust(secret, file, current if name == "kubernetes-ca" else b"")
        await self._publish()
        await self._restart()
        self.report("The previous authorities are no longer trusted.")

    async def _wait_reachable(self) -> None:
        """Wait until the Nova API server responds: an interrupted call of the command may have restarted components.
        Raises ApiError."""
        stored = await self.hosting.get(f"{self._collection}/{certificates.CONTROL_PLANE}")
        deadline = time.monotonic() + _RESTART_TIMEOUT
        async with self.connect(certificates.administrator(stored, "")) as nova:
            while True:
                try:
                    await nova.list(CLUSTERS)
                    return
                except ApiError as error:
                    if 400 <= error.status < 500 or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(_POLL)

    async def _files(self, name: str) -> Files:
        stored = await self.hosting.find(f"{self._collection}/{name}")
        return certificates.files_of(stored) if stored else {}

    async def _write(self, name: str, files: Mapping[str, bytes]) -> None:
        data = certificates.secret(name, self.namespace, files)["data"]
        await self.hosting.patch(f"{self._collection}/{name}", {"data": data})

    async def _trust(self, secret: str, file: str, authority: bytes) -> None:
        bundle = certificates.split_bundle((await self._files(secret)).get(file, b""))
        if authority not in bundle:
            await self._write(secret, {file: b"".join([*bundle, authority])})

    async def _distrust(self, secret: str, file: str, current: bytes) -> None:
        """Remove the trusted authorities of a Secret except ``current``; if it is empty, except the newest one."""
        bundle = certificates.split_bundle((await self._files(secret)).get(file, b""))
        remaining = certificates.split_bundle(current)[0] if current else bundle[-1]
        if remaining not in bundle:
            raise Invalid(f"Secret {secret}: {file} does not contain the authority that signs agents' certificates.")
        if bundle != [remaining]:
            await self._write(secret, {file: remaining})

    async def _issue(self, following: Mapping[str, Authority]) -> None:
        """Issue the certificates that the new authorities have not issued yet."""
        files = await self._files(certificates.CONTROL_PLANE)
        options = certificates.options_of(files.get("apiserver.crt", b""), self.namespace)
        if not certificates.issued_by(files["apiserver.crt"], following["kubernetes-ca"].pem):
            keys = {name: files[name] for name in ("sa.key", "sa.pub")}  # tokens of service accounts stay valid
            issued = certificates.control_plane_files(options, following, keys)
            await self._write(certificates.CONTROL_PLANE, {name: content for name, content in issued.items()
                                                           if (certificates.CONTROL_PLANE, name) not in _BUNDLES})
        etcd = await self._files(certificates.ETCD)
        if not certificates.issued_by(etcd.get("server.crt", b""), following["etcd-ca"].pem):
            issued = certificates.etcd_files(options, following)
            await self._write(certificates.ETCD, {name: issued[name] for name in ("server.crt", "server.key")})
        authority = following["kubernetes-ca"]
        if (await self._files(certificates.SIGNING)).get("ca.key") != authority.key_pem:
            await self._write(certificates.SIGNING, {"ca.crt": authority.pem, "ca.key": authority.key_pem})

    async def _restart(self) -> None:
        """Restart the components whose Secrets changed, one after the other, and wait for each."""
        for plural, name, title in manifests.COMPONENTS:
            secrets = ((certificates.ETCD,) if name == "etcd" else
                       (certificates.CONTROL_PLANE, certificates.ETCD) if name == "apiserver" else
                       (certificates.CONTROL_PLANE, certificates.SIGNING))
            files = [sorted((await self._files(secret)).items()) for secret in secrets]
            digest = hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:20]
            path = f"/apis/apps/v1/namespaces/{self.namespace}/{plural}/{name}"
            template = (await self.hosting.get(path))["spec"]["template"]
            if (template["metadata"].get("annotations") or {}).get(DIGEST) != digest:
                self.report(f"Restarting {title}")
                await self.hosting.patch(path, {"spec": {"template": {"metadata": {"annotations": {DIGEST: digest}}}}})
            await manifests.wait_ready(self.hosting, self.namespace, plural, name, _TIMEOUT)

    async def _publish(self) -> None:
        """Store the trusted certificates where agents read them, and in the credentials with which new clusters
        join."""
        stored = await self.hosting.get(f"{self._collection}/{certificates.CONTROL_PLANE}")
        config = certificates.administrator(stored, "")
        issuer = (await self._files(certificates.SIGNING)).get("ca.crt", b"")
        labels = {"name": names.AUTHORITIES, "namespace": "kube-public"}
        async with self.connect(config) as nova:
            await manifests.apply(nova, [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": labels,
                 "data": {"ca.crt": config.ca.decode(), "issuer.crt": issuer.decode()}},
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": labels, "rules": [
                    {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [names.AUTHORITIES],
                     "verbs": ["get", "list", "watch"]}]},
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": labels,
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names.AUTHORITIES},
                 "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": AGENTS_GROUP}]}])
            path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{INIT}"
            if init := await nova.find(path):
                old = decode(certificates.files_of(init).get("kubeconfig", b""), f"Secret {NAMESPACE}/{INIT}")
                content = msgspec.structs.replace(old, ca=config.ca).render("nova-agent").encode()
                await nova.patch(path, {"data": {"kubeconfig": base64.b64encode(content).decode()}})

    async def _wait_for_agents(self, timeout: float) -> None:
        """Wait until the agents of all clusters trust the new authorities: other agents could not connect any more."""
        deadline = time.monotonic() + timeout
        self.report("Waiting until all agents trust the new authorities")
        while late := await self._late_agents(confirmation=True):
            if time.monotonic() > deadline:
                raise Refused(f"The agents of these clusters do not trust the new authorities yet: {', '.join(late)}."
                              " Repeat the command when they are connected. With --force, they must join again.")
            await asyncio.sleep(_POLL)

    async def _late_agents(self, confirmation: bool) -> list[str]:
        """Return the clusters whose agents have no certificate of the present authority. If ``confirmation`` is set:
        whose agents have not confirmed the trusted authorities by a certificate request."""
        stored = await self.hosting.get(f"{self._collection}/{certificates.CONTROL_PLANE}")
        config = certificates.administrator(stored, "")
        issuer = (await self._files(certificates.SIGNING)).get("ca.crt", b"")
        digest = hashlib.sha256(config.ca).hexdigest()[:20]
        async with self.connect(config) as nova:
            clusters = {str(item["metadata"]["name"]) for item in (await nova.list(CLUSTERS))["items"]}
            requests = (await nova.list(_REQUESTS, fieldSelector=f"spec.signerName={SIGNER}"))["items"]
        for request in requests:
            signed = (request.get("status") or {}).get("certificate")
            if confirmation and (request["metadata"].get("annotations") or {}).get(TRUSTED) == digest:
                # The API server sets the user: an agent cannot confirm for another cluster.
                clusters.discard(str(request["spec"].get("username")).removeprefix(AGENT_USER))
            elif not confirmation and signed and certificates.issued_by(base64.b64decode(signed), issuer):
                clusters.discard(_cluster_of(base64.b64decode(signed)))
        return sorted(clusters)


def _cluster_of(certificate: bytes) -> str:
    names = x509.load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value).removeprefix(AGENT_USER) if names else ""
