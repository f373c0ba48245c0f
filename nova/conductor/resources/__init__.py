"""What a server has besides its guest: volumes, interfaces, addresses, images; ours and those of services outside."""
