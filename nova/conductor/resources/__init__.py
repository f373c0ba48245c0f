"""Resources of a server: volumes, interfaces, addresses, shares and images, embedded or of external services."""
