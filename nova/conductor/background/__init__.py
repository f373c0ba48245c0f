"""Background tasks that all conductors share: drains, reclaim, precaching, the outbox sender, usage audits."""
