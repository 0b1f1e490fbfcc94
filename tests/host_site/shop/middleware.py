def sign(get_response):
    """Sign every response of the site."""

    def signed(request):
        response = get_response(request)
        response["X-Shop"] = "signed"
        return response

    return signed
