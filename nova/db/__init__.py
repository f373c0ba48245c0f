"""Tables, migrations and queries. Imported by the conductor and by the commands that own a database."""
