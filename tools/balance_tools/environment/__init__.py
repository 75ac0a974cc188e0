"""Virtual environments with a built wheel in them."""
