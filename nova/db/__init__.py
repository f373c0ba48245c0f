"""Tables, migrations and queries. Imported by nova-conductor, and by the commands that access the database directly."""
