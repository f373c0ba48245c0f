"""Actions on a server: the bodies of POST /servers/{id}/action and what belongs to them."""
