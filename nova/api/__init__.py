"""The REST API. How to add a resource:

1. ``compute/*/X.py``: declare what goes in and out with :mod:`nova.api.validation.fields`, write handlers::

       INDEX_QUERY = Query({"limit": Field(LIMIT, since=35)}, strict=75)      # see operations.json
       THING = View([Out("name", STRING), Out("type", STRING, since=2)])      # rendered per version

       @accepts(query=INDEX_QUERY, answer=listed("things", THING))            # and single("thing", THING)
       def index(req: Request) -> list[Thing]:
           return req.clients.things.index(req.ctx, req.scope)               # a call on the bus

   A handler gets a checked :class:`~nova.api.request.Request` (``params``, ``query``, ``body``, ``version``, ``ctx``,
   ``clients``). It returns the resource of ``single`` or the resources of ``listed``; with another answer it returns
   the body, None for an empty one, or a :class:`~nova.api.request.Response` for another status or headers. Errors are
   raised as :mod:`nova.exception` (its ``code`` is the status). Microversions are minor numbers: 47 is 2.47. A GET
   without a declared query takes no parameters (unknown: dropped before 2.102, then 400); ``ANY_QUERY`` ignores unknown
   ones for ever. POST, PUT, DELETE without a query check none. Types that many resources have are in
   :mod:`nova.api.validation.types`.
2. ``routes.py``: one line per method and path, with policy, versions and status. Literal segments win over
   ``{parameters}``. An action is a POST on ``.../action`` with ``action="key"`` and a body ``only("key", TYPE)``. The
   policy of a line is checked with the caller's own project as target; leave it out and call
   ``req.authorize(rule, {"project_id": ...})`` where the target is another.
3. Paging: ``limit, marker = req.page()`` and ``req.with_next(answer, "things_links", path, things, limit, "uuid")``;
   ids of URLs: ``req.uuid(exception.ThingNotFound, "thing_id")``; links: ``req.links("flavors", ident)``; booleans:
   ``req.flag(name)``, ``request.is_true(value)``; integers that may be strings: ``request.whole(value)``; times:
   ``iso``, ``iso_precise``; errors that are 400: ``errors.as_invalid(exception.ThingNotFound)``.
4. ``tests/unit/api``: ``tests/unit/api/test_reference.py`` compares every route's schemas with the reference in all
   versions by itself; behaviour is tested over HTTP in tests/functional.

``compute/accounts/keypairs.py`` is the example.
"""
