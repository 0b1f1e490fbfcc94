"""Where workers are served beside the HTTP port."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Endpoint(models.Model):
    """A binding that listens by itself, as the server says that serves it."""

    url = models.CharField(max_length=255, primary_key=True)
    """With `*` for a host where it listens on all of them."""
    name = models.CharField(max_length=16)
    """The protocol: `agq`, `rota`."""
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering = ("url",)

    def __str__(self) -> str:
        return f"{self.name} {self.url}"
