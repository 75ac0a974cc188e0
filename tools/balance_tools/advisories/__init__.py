"""Published vulnerabilities of what we ship, and what this project answers."""
