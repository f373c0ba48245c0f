"""What conductors do by themselves, all of them together: drains, reclaiming, pre-caching, sending, audits of use."""
