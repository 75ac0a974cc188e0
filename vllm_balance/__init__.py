"""What vllm-balance adds beside vLLM: what is installed, and is it intact."""
