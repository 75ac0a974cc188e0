"""Maintainers' tools of vllm-balance: lock, vendored sources, patch series, wheels."""
