"""Is this machine right for the wheel: the command `vllm-balance doctor`."""
