"""What flavors, images and requests ask for, read and checked."""
