"""Shared by the black-box tests: servers, a wire-level client, waiting, and the runner."""
