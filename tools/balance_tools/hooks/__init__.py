"""Where a patch's lines stand in the syntax tree, here and in another release."""
