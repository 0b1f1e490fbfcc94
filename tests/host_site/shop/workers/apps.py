from django.apps import AppConfig


class ShopWorkersConfig(AppConfig):
    name = "shop.workers"
    label = "workers"
