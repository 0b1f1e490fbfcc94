"""The Admin API, `/ojs/v1/admin/…`: the control plane (OJS admin API).

What concerns workers lives in `workers.api`, for nothing here may know them.
"""
