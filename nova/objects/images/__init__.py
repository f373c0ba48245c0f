"""Objects for images and the image cache."""
