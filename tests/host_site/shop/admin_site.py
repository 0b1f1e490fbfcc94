from django.contrib import admin
from django.contrib.admin.apps import AdminConfig


class ShopAdminSite(admin.AdminSite):
    site_header = "Back office of the shop"


class ShopAdminConfig(AdminConfig):
    default_site = "shop.admin_site.ShopAdminSite"
