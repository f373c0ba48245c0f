"""What a process tells of itself: metrics, tracing and worker statistics."""
