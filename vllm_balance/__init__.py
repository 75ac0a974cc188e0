"""The package that vllm-balance adds to the wheel, beside the patched ones."""
