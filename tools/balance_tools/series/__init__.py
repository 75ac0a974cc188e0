"""The patch series: read, applied exactly, written as quilt writes it, and linted."""
