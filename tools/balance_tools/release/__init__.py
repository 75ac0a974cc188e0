"""Everything that a release has, by one command, and the proof that it works."""

DOORS = ()
