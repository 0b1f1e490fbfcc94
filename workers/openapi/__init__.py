"""Generates the OpenAPI document of everything under /ojs, separately from the views.

`operations` describes what each endpoint accepts and returns, `components` the schemas; `generate`
combines both with what the URL patterns and the views define (paths, methods, scopes). An endpoint
without a description fails the tests. Needs the extra `openapi`.
"""
