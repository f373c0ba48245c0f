"""What a guest may know of itself: documents made from an instance, without asking anybody."""
