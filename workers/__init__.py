"""Who runs jobs and how they talk to us: the OJS worker protocol (Layer 3) as a Django app."""
