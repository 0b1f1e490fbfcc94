"""Work that no request triggers: the reaper's sweeps and slow housekeeping."""
