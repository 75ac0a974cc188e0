"""Everything that a release has, by one command."""

DOORS = ()
