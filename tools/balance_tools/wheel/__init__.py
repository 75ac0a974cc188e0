"""One wheel: the plan, its parts and metadata, the build, and the checks."""
