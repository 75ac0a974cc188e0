"""Build a rebased tree and run its tests, ours and upstream's; go on where killed."""

DOORS = ("serves", "verdict", "verify")
