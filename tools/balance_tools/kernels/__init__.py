"""The Ascend kernels of a wheel: upstream's, proven equal, or built from source."""
