"""The Placement API, which nova-api serves at /placement: a view of the providers and allocations of hosts and claims.

``app`` has the table of its URLs; the modules with the handlers are ``providers``, ``consumers`` and ``names``. Queries
and bodies are parsed by ``queries`` and ``bodies``."""
