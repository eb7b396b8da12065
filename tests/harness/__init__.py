"""What the black-box tests share: servers, a client that shows the bytes on the wire, waiting, and
the runner."""
