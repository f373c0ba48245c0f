"""Requirements of flavors, images and requests, parsed and validated."""
