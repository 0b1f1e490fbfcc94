"""Documents to values: what a request may say, and how a job is written down."""
