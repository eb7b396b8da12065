"""What the black-box tests share: servers, a wire-level client, waiting, and the runner."""
