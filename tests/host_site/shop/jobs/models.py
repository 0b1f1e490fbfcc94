from django.db import models


class Job(models.Model):
    """A vacancy in the shop; no relation to the other kind."""

    title = models.CharField(max_length=100)
    filled_by = models.CharField(max_length=100, blank=True)
