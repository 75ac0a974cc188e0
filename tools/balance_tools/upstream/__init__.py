"""Upstream's files: locked, looked up, fetched with their hash, and unpacked."""

DOORS = ("fetch", "index", "lock", "pristine", "resolve")
