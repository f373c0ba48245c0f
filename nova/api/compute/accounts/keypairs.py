"""os-keypairs: the public keys of users."""

from typing import Any

from nova import exception
from nova.api.request import Request, iso_precise
from nova.api.router import accepts
from nova.api.validation.fields import ABSENT, Array, Changing, Combined, Field, Object, Out, Query, View, enum, string
from nova.api.validation.types import INTEGER, LIMIT, LINKS, NAME, STRING, STRING_OR_NULL, TRUTH
from nova.objects.accounts.keypair import SSH, X509, Keypair

# Maximum number of characters of a user id.
_LONGEST = 255

_KEY_NAME = Changing({
    0: NAME,
    1: Combined("allOf", NAME, string(pattern=r"^[_\- a-zA-Z0-9]+$", minLength=1, maxLength=255)),
    92: Combined("allOf", NAME, string(pattern=r"^[_\-\@\. a-zA-Z0-9]+$", minLength=1, maxLength=255))})
CREATE = Object({"keypair": Field(Object({
    "name": Field(_KEY_NAME, required=True), "type": Field(enum(SSH, X509), since=2),
    "public_key": Field(STRING, required=92), "user_id": Field(STRING, since=10),
}), required=True)})

_USER = {"user_id": Field(STRING, since=10)}
INDEX_QUERY = Query({**_USER, "limit": Field(LIMIT, since=35), "marker": Field(STRING, since=35)}, strict=75)
USER_QUERY = Query(_USER, strict=75)

_KEYS = [Out("name", STRING), Out("type", STRING, since=2), Out("public_key", STRING), Out("fingerprint", STRING)]
LISTED = View(_KEYS)
SHOWN = View([
    *_KEYS, Out("user_id", STRING), Out("id", INTEGER),
    Out("created_at", STRING_OR_NULL, lambda key, _req: iso_precise(key.created_at)),
    Out("updated_at", STRING_OR_NULL, lambda _key, _req: None),
    Out("deleted_at", STRING_OR_NULL, lambda _key, _req: None), Out("deleted", TRUTH, lambda _key, _req: False)])
CREATED = View([
    *_KEYS,
    Out("user_id", STRING),
    # Nova does not store the private key: only the response to the request that generates it contains it.
    Out("private_key", STRING, lambda _key, _req: ABSENT, until=91)])


def _user(req: Request, operation: str, user_id: str | None) -> str:
    """Return the user whose keys are requested. Raises PolicyNotAuthorized if the caller may not access them."""
    user = user_id or req.ctx.user_id or ""
    if len(user) > _LONGEST:
        raise exception.Invalid(f"user_id is longer than {_LONGEST} characters.")
    req.authorize("os_compute_api:os-keypairs:" + operation, {"user_id": user})
    return user


@accepts(query=INDEX_QUERY, answer=Object({
    "keypairs": Array(Object({"keypair": LISTED})), "keypairs_links": Field(LINKS, since=35)}))
def index(req: Request) -> dict[str, Any]:
    """List the key pairs of a user."""
    user = _user(req, "index", req.arg("user_id"))
    limit, marker = req.page()
    keypairs = req.clients.keypairs.index(req.ctx, user, limit=limit if req.version >= 35 else None, marker=marker)
    answer = {"keypairs": [{"keypair": LISTED.render(key, req)} for key in keypairs]}
    return req.with_next(answer, "keypairs_links", "os-keypairs", keypairs, limit, "name", since=35)


@accepts(query=USER_QUERY, answer=Object({"keypair": SHOWN}))
def show(req: Request) -> dict[str, Any]:
    """Show a key pair."""
    user = _user(req, "show", req.arg("user_id"))
    return {"keypair": SHOWN.render(req.clients.keypairs.get(req.ctx, user, req.params["id"]), req)}


@accepts(body=CREATE, answer=Object({"keypair": CREATED}), errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Import a public key or, before 2.92, generate a key pair."""
    # Imported on demand: the cryptography library takes 8 MB of each worker, and few requests create keys.
    from nova.api import keys

    wanted = req.body["keypair"]
    user = _user(req, "create", wanted.get("user_id"))
    kind, public, private = wanted.get("type", SSH), wanted.get("public_key"), None
    if public is None:
        public, private = keys.generate(kind, user)
    key = Keypair(user_id=user, name=wanted["name"], type=kind, public_key=public,
                  fingerprint=keys.fingerprint(kind, public))
    shown = CREATED.render(req.clients.keypairs.create(req.ctx, key, imported=private is None), req)
    if private is not None:
        shown["private_key"] = private
    return {"keypair": shown}


@accepts(query=USER_QUERY)
def delete(req: Request) -> None:
    """Delete a key pair."""
    req.clients.keypairs.delete(req.ctx, _user(req, "delete", req.arg("user_id")), req.params["id"])
