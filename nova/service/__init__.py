"""Code of every service process: start of workers, heartbeats, periodic tasks, thread pools and shutdown."""
