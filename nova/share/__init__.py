"""Back ends of shares: a half for hosts, and one for conductors."""
