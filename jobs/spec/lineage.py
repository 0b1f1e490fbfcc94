"""Names of the members that say from which job a job comes (OJS execution history §5)."""

PARENT = "parent_id"
"""The job that enqueued it."""
ROOT = "root_id"
"""The first job of the line, which the server works out. A job without a parent has none."""
