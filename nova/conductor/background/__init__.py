"""Background tasks that all conductors share: drains, reclaiming, pre-caching, sending, audits of usage."""
