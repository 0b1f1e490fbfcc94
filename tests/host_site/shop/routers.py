OURS = ("ojs_jobs", "ojs_workers")


class QueueRouter:
    """Puts the job server into a database of its own."""

    def db_for_read(self, model, **hints):
        return "queue" if model._meta.app_label in OURS else "default"

    db_for_write = db_for_read

    def allow_relation(self, one, other, **hints):
        return self.db_for_read(one) == self.db_for_read(other)

    def allow_migrate(self, db, app_label, **hints):
        return (db == "queue") == (app_label in OURS)
