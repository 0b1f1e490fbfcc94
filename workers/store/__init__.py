"""How the rows of workers are written, whatever the database."""
