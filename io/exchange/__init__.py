"""How parties talk: gateway, files, handshake, TLS."""
