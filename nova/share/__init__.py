"""Back ends of shares, each with a part for hosts and a part for conductors."""
