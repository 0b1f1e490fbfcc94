"""The Admin API, `/ojs/v1/admin/…`: the control plane (OJS admin API).

Endpoints for workers are in `workers.api`, because nothing here may import `workers`.
"""
