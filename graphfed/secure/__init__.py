"""Protections on what a party holds and sends: functions and state machines; no places, no sockets."""
