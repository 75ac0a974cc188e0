"""Whether our files and hooks fit a release of upstream."""
