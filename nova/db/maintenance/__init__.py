"""Queries for the whole database: migrations, purge, readiness, the outbox and the overview."""
