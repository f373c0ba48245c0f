"""The REST API. How to add a resource:

1. ``compute/*/X.py``: declare query, body and response with :mod:`nova.api.validation.fields`, write handlers::

       INDEX_QUERY = Query({"limit": Field(LIMIT, since=35)}, strict=75)      # see operations.json
       THING = View([Out("name", STRING), Out("type", STRING, since=2)])      # rendered per version

       @accepts(query=INDEX_QUERY, answer=listed("things", THING))            # and single("thing", THING)
       def index(req: Request) -> list[Thing]:
           return req.clients.things.index(req.ctx, req.scope)               # a call on the bus

   A handler gets a checked :class:`~nova.api.request.Request` (``params``, ``query``, ``body``, ``version``, ``ctx``,
   ``clients``). If the declared answer is ``single`` or ``listed``, the handler returns the resource or the list of
   resources. Otherwise it returns the body (None: no body), or a :class:`~nova.api.request.Response` to set the status
   or headers. Errors are exceptions of :mod:`nova.exception`, whose ``code`` is the status. Microversions are minor
   numbers: 47 is 2.47. A GET without a declared query has no parameters: before 2.102 parameters are ignored, from
   2.102 refused (400). ``ANY_QUERY`` ignores unknown parameters in all versions. POST, PUT and DELETE without a
   declared query do not check parameters. :mod:`nova.api.validation.types` has the types that many resources use.
2. ``routes.py``: one line per method and path, with policy, versions and status. Literal segments win over
   ``{parameters}``. An action is a POST on ``.../action`` with ``action="key"`` and a body ``only("key", TYPE)``. The
   policy of a line is checked with the caller's own project as target. If the target is another project, leave the
   policy out, and call ``req.authorize(rule, {"project_id": ...})`` in the handler.
3. Paging: ``limit, marker = req.page()`` and ``req.with_next(answer, "things_links", path, things, limit, "uuid")``;
   ids of URLs: ``req.uuid(exception.ThingNotFound, "thing_id")``; links: ``req.links("flavors", ident)``; booleans:
   ``req.flag(name)``, ``request.is_true(value)``; integers that may be strings: ``request.whole(value)``; times:
   ``iso``, ``iso_precise``; errors that are 400: ``errors.as_invalid(exception.ThingNotFound)``.
4. ``tests/unit/api/test_reference.py`` compares the schemas of every route with the reference in all versions, so it
   needs no change. Add tests of the behaviour, over HTTP, in tests/functional.

``compute/accounts/keypairs.py`` is a complete example.
"""
