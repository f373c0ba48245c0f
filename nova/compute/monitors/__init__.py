"""Monitors: metrics of a host for schedulers and notifications, besides its inventory."""
