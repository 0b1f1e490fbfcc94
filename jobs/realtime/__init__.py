"""Live events for clients that stay connected (OJS realtime).

The record of events is what everything is read from. `hub` reads it once for a whole process and
hands each event to the subscriptions that want it; `replay` reads what a client missed. `sse` and
`socket` are the two transports. They run on the event loop of a server (`jobs.http.loop`), and
only reading from the database takes a thread.
"""
