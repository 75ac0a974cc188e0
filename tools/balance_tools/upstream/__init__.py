"""Upstream's files: locked, looked up, fetched with their hash, and unpacked."""
