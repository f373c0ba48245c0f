"""What belongs to users and projects."""
