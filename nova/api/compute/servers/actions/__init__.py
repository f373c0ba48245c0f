"""Actions on a server (POST /servers/{id}/action): schemas and handlers."""
