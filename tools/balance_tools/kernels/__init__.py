"""The Ascend kernels of a wheel: upstream's, proven equal, or built from source."""

DOORS = ("from_source", "prebuilt", "stage", "toolchain")
