"""Live events for clients that stay connected (OJS realtime).

All of them are read from the record of events. `hub` reads it once for a whole process and passes
each event to the subscriptions that want it; `replay` reads the events that a client missed. `sse`
and `socket` are the two transports. They run on the event loop of a server (`jobs.http.loop`); only
database queries take a thread.
"""
