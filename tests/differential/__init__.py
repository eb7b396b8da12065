"""The same commands to the server under test and to stock redis-server: the replies are the same."""
