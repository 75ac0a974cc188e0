"""What upstream changed around the series, which no merge can know."""
