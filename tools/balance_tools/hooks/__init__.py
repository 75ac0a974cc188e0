"""Where a patch's lines stand in the syntax tree, here and in another release."""

DOORS = ("check_placement", "model", "outcome", "scopes")
