"""Back ends of shares, each with an interface for hosts and one for conductors."""
