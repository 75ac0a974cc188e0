"""See balance scheduling work on this machine, from nothing."""
