"""Back ends of networks, each with a part for hosts and a part for conductors."""
