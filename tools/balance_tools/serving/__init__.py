"""The built wheel at work: an environment, a server, the demo, a container image."""

DOORS = ("env", "server")
