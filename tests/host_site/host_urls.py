from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("back-office/", admin.site.urls), path("", include("workers.urls"))]
