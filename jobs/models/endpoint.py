"""Endpoints: where workers are served beside the HTTP port."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Endpoint(models.Model):
    """A binding with a port of its own, as reported by the server that serves it."""

    url = models.CharField(max_length=255, primary_key=True)
    """Host and port; the host is `*` for a server that listens on all addresses."""
    name = models.CharField(max_length=16)
    """The protocol: `agq`, `rota`."""
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering = ("url",)

    def __str__(self) -> str:
        return f"{self.name} {self.url}"
