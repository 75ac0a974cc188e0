"""A real `vllm serve` for the demo, the benchmarks and the tests."""

DOORS = ("server",)
