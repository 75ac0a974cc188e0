"""Upstream's files: locked, looked up, fetched with their hash, and unpacked."""

DOORS = ("archive", "fetch", "index", "lock", "pristine", "resolve")
