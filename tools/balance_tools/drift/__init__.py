"""Reports upstream's changes around the series, which a merge does not show."""
