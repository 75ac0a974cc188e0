"""The part of Mooncake that the plugin's P/D connector imports."""
