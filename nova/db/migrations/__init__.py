"""The schema's history: idempotent revisions. All but the first are frozen and never import the models."""
