from django.contrib import admin
from django.http import JsonResponse
from django.urls import include, path


async def hours(request):
    return JsonResponse({"request": type(request).__name__})


urlpatterns = [
    path("back-office/", admin.site.urls),
    path("shop/hours", hours),
    path("", include("workers.urls")),
]
