"""The Placement API, which nova-api serves at /placement: a view of the providers of hosts and of the claims on them.

``app`` has the table of routes; ``providers``, ``consumers`` and ``names`` contain the handlers; ``queries`` and
``bodies`` parse query strings and bodies of requests."""
