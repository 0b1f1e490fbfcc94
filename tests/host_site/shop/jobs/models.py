from django.db import models


class Job(models.Model):
    """A vacancy in the shop, unrelated to our jobs."""

    title = models.CharField(max_length=100)
    filled_by = models.CharField(max_length=100, blank=True)
