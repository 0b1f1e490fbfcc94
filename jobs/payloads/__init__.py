"""Payloads: their codecs and keys, and values that are stored elsewhere.

Only processes of a site that has the keys come here: where it enqueues jobs, where it runs them,
and its codec server. No binding does, and the engine only deletes what is stored elsewhere, which
needs no key.
"""
