"""`JobServer` around the site's own ASGI application."""

from host_asgi import application as site

from workers.asgi import JobServer

application = JobServer.around(site)
