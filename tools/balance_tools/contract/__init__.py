"""Whether what our files and hooks use of upstream is still there, and still fits."""

DOORS = ("check", "fit")
"""The modules that other rooms use."""
