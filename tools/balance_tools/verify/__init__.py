"""Build a tree with the series and run its tests, ours and upstream's."""
