"""How rows are read and written: which database, prepared statements, wake-ups, indexes."""
