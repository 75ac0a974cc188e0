"""Whether what our files and hooks use of upstream is still there, and still fits."""

DOORS = ("check", "fit", "history")
"""The modules that other rooms use."""
