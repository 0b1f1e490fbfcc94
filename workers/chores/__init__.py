"""What must happen without a request: the reaper's sweeps and slow housekeeping."""
