"""A container image from a finished wheel."""

DOORS = ()
