"""The page docs/reference.md, from parsers and sources."""
