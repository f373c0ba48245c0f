"""Resources below a server: interfaces, volume attachments, shares, addresses, tags, metadata, topology."""
