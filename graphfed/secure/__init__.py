"""Protections as functions on what a party holds: no places, no messages, no sockets."""
