"""Events of the record, sent to the URLs that subscribe to them (OJS webhooks).

`fan_out` reads the record from a cursor and writes a delivery for each subscription that an event
matches, so that no statement of a worker or a producer pays for it. `delivery` sends them, and
tries again; `subscriptions` makes and changes who gets what.
"""
