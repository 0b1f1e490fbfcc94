"""Reading and writing rows: the database, prepared statements, wake-ups, indexes."""
