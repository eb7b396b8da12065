"""Common parts of the black-box tests: servers, a client that shows the bytes on the wire, waiting,
and the runner."""
