"""Notifications on the message bus: event types, publishers and payloads."""
