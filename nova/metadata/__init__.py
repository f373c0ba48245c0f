"""Metadata of guests: documents created from an instance, without database or RPC access."""
