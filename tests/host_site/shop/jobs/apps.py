from django.apps import AppConfig


class ShopJobsConfig(AppConfig):
    name = "shop.jobs"
    label = "jobs"
    default_auto_field = "django.db.models.AutoField"
