"""The OpenAPI document of everything under /ojs: written beside the views, never asked by them.

`operations` says of each endpoint what it takes and answers, `components` in which form;
`generate` puts both together with what the URL patterns and the views know themselves (paths,
methods, scopes). An endpoint that nobody described fails the tests. Needs the extra `openapi`.
"""
