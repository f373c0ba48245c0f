"""Migrations of the schema; each can be repeated. All but the first are frozen and do not import the models."""
