"""What happens when something is wrong: each case ends with a clear message and loses nothing."""
