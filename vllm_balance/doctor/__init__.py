"""Checks whether a machine fits the wheel: `vllm-balance doctor`."""
