"""Stand-alone job server: settings, URLs and the demonstration. No app imports it."""
