"""Sends the same commands to the server under test and to stock redis-server, and compares the
replies."""
