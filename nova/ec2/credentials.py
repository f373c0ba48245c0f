"""Authentication of callers: Keystone checks the signature of a request and issues a token of the caller's project."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
from collections.abc import Mapping
from typing import Any

from nova.conf import CONF
from nova.context import RequestContext
from nova.ec2.errors import Ec2Error, unavailable
from nova.http.messages import Environ
from nova.service_clients import ServiceClient, Unreachable, decode_response

LOG = logging.getLogger(__name__)

_NOAUTH_PROJECT = "0" * 31 + "1"
_LONGEST = 255
_ACCESS = re.compile(r"[\x21-\x7e]{1,255}")
_CREDENTIAL = re.compile(r"Credential=([^,\s]+)")
_SIGNATURE = re.compile(r"Signature=([^,\s]+)")
_ALGORITHM = "AWS4-HMAC-SHA256"
_TOKEN = dict[str, Any]
# Responses of Keystone to a wrong signature or access key; others, like 403 and 429, are not the fault of the caller.
_REFUSALS = (400, 401, 404)


@dataclasses.dataclass(frozen=True)
class Caller:
    """The authenticated caller: a token of its project, and headers that are sent with the token."""

    token: str
    project_id: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _refused(message: str) -> Ec2Error:
    return Ec2Error("AuthFailure", message, 401)


def described(environ: Environ, parameters: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the signed request in the form in which Keystone checks it. Raises AuthFailure without a signature."""
    headers = {name[5:].replace("_", "-").title(): value for name, value in environ.items()
               if name.startswith("HTTP_") and isinstance(value, str)}
    if environ.get("CONTENT_TYPE"):
        headers["Content-Type"] = environ["CONTENT_TYPE"]
    access, signature = _signature(environ["REQUEST_METHOD"], headers, parameters, bool(environ.get("QUERY_STRING")))
    if not _ACCESS.fullmatch(access) or not signature or len(signature) > _LONGEST:
        raise _refused("The request has no usable access key and signature.")
    # A signature of version 2 covers all parameters except itself.
    signed_parameters = {name: value for name, value in parameters.items()
                         if name not in ("Signature", "X-Amz-Signature")}
    return {"access": access, "signature": signature, "host": environ.get("HTTP_HOST", ""),
            "verb": environ["REQUEST_METHOD"], "path": environ.get("PATH_INFO") or "/", "params": signed_parameters,
            "headers": headers, "body_hash": hashlib.sha256(body).hexdigest()}


def _signature(method: str, headers: Mapping[str, str], parameters: Mapping[str, str],
               has_query: bool) -> tuple[str, str]:
    """Return the access key and the signature of a request. Raises AuthFailure unless the signature covers all of its
    parameters and its time: Keystone would accept some of the refused requests, and fail to process others."""
    authorization = headers.get("Authorization", "")
    if authorization.startswith(_ALGORITHM):
        credential, signed = _CREDENTIAL.search(authorization), _SIGNATURE.search(authorization)
        scope, signature = credential[1] if credential else "", signed[1] if signed else ""
        names = "SignedHeaders=" in authorization
    elif "X-Amz-Signature" in parameters:
        scope, signature = parameters.get("X-Amz-Credential", ""), parameters["X-Amz-Signature"]
        names = "X-Amz-SignedHeaders" in parameters and parameters.get("X-Amz-Algorithm") == _ALGORITHM
        has_query = True
    else:
        if "Signature" in parameters and (parameters.get("SignatureVersion") != "2" or not parameters.get("Timestamp")):
            raise _refused("Signatures must be of version 2, with the parameter Timestamp, or of version 4.")
        return parameters.get("AWSAccessKeyId", ""), parameters.get("Signature", "")
    if method == "POST" and has_query:
        # Keystone's signature of a POST request covers its body only.
        raise _refused("A POST request that is signed by version 4 has its parameters in the body, not in the URL.")
    time = headers.get("X-Amz-Date") or parameters.get("X-Amz-Date", "")
    parts = scope.rsplit("/", 4)
    if not names or len(parts) != 5 or not time.startswith(parts[1]) or "SignatureVersion" in parameters:
        raise _refused("The request has no complete signature of version 4.")
    return parts[0], signature


class Authenticator:
    """Identifies the caller of a request by Keystone or, if auth_strategy is noauth, by the access key alone."""

    def __init__(self) -> None:
        self._keystone: ServiceClient | None = None
        if CONF.api.auth_strategy == "keystone":
            self._keystone = ServiceClient("ec2", {"service_type": "identity", "interface": ["internal", "public"]},
                                           versions=("/v3",))

    def caller_of(self, ctx: RequestContext, environ: Environ, parameters: Mapping[str, str], body: bytes) -> Caller:
        """Return the caller. Raises AuthFailure."""
        credentials = described(environ, parameters, body)
        if self._keystone is None:
            return _noauth(credentials["access"])
        return _validate(self._keystone, ctx, credentials)


def _noauth(access: str) -> Caller:
    """Return the caller whom an access key "user:project" names. The signature is not checked."""
    user, _colon, project = access.partition(":")
    project = project or _NOAUTH_PROJECT
    return Caller(access, project, {"X-User-Id": user, "X-Project-Id": project, "X-Roles": "member,reader"})


def _validate(keystone: ServiceClient, ctx: RequestContext, credentials: Mapping[str, Any]) -> Caller:
    try:
        response = keystone.request(ctx, "POST", "/v3/ec2tokens", json={"credentials": credentials}, waits=True)
        if response.status_code in (200, 201):
            project = decode_response(response, _TOKEN, "token").get("project")
            token = response.headers.get("X-Subject-Token", "")
            if token and isinstance(project, dict) and isinstance(project.get("id"), str):
                return Caller(token, project["id"])
            raise Unreachable("the response has no token of a project")
    except Unreachable as error:
        LOG.warning("Cannot check the signature of access key %s with Keystone, the request fails: %s",
                    credentials["access"], error)
        raise unavailable("The identity service is unavailable.") from error
    if response.status_code not in _REFUSALS:
        LOG.warning("Keystone did not check a signature (status %s), the request fails: verify the credentials in "
                    "[ec2] of nova.conf", response.status_code)
        raise unavailable("The identity service is unavailable.")
    raise _refused("The identity service could not validate the access credentials.")
