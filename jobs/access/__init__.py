"""Who may do what, and what becomes of those who may not."""
