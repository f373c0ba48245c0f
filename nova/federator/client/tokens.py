"""Bootstrap tokens with which the agents of new clusters join."""

import base64
import datetime
import secrets
import string

import msgspec

from nova.federator.api.names import PIN
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig

JOINERS = "system:bootstrappers:nova"  # the group of all tokens
_COLLECTION = "/api/v1/namespaces/kube-system/secrets"
_CHARACTERS = string.ascii_lowercase + string.digits


async def create_token(api: Api, cluster: str = "", hours: int = 24) -> str:
    """Create a token and return it. ``cluster``: only this cluster may join with the token, once, even if it has joined
    before. If empty, any cluster whose name does not exist yet may join. ``hours``: validity. Raises ApiError."""
    token_id = "".join(secrets.choice(_CHARACTERS) for _ in range(6))
    secret = "".join(secrets.choice(_CHARACTERS) for _ in range(16))
    expiration = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)  # checked by the API server
    data = {"token-id": token_id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": JOINERS, "expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "description": f"Registration of cluster {cluster or 'agents'} in Nova"}
    await api.create(_COLLECTION, {
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{token_id}", "annotations": {PIN: cluster} if cluster else {}},
        "data": {field: base64.b64encode(value.encode()).decode() for field, value in data.items()}})
    return f"{token_id}.{secret}"


def bootstrap_config(administrator: Kubeconfig, token: str, server: str = "") -> Kubeconfig:
    """Return the kubeconfig of an agent that has not joined yet. ``server``: the URL for agents, if it differs."""
    return msgspec.structs.replace(administrator, certificate=b"", key=b"", token=token, context="nova",
                                   server=server or administrator.server)
