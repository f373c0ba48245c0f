"""The schema's history. Revisions are frozen: they never import the models."""
