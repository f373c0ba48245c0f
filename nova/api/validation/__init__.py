"""Validation of requests: schemas of bodies and queries, formats, and the fields of responses."""
