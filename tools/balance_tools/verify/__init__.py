"""Build a rebased tree and run its tests, ours and upstream's; go on where killed."""

DOORS = ("verdict", "verify")
"""The modules that other rooms use."""
