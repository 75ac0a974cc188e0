"""What vllm-balance adds to the wheel beside the packages it patches."""
