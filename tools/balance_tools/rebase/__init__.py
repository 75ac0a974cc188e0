"""Move the patch series to another upstream release, proven or refused."""
