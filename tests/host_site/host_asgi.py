"""ASGI application of the site: Django, a WebSocket and lifespan events."""

from django.core.asgi import get_asgi_application

django = get_asgi_application()


async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await keep_open(receive, send)
    elif scope["type"] == "websocket":
        await echo(receive, send)
    else:
        await django(scope, receive, send)


async def keep_open(receive, send):
    await receive()
    print("The shop opens.", flush=True)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("The shop closes.", flush=True)
    await send({"type": "lifespan.shutdown.complete"})


async def echo(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    message = await receive()
    await send({"type": "websocket.send", "text": f"The shop hears {message['text']}."})
    await send({"type": "websocket.close"})
