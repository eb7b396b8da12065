"""What happens when something is wrong: each case ends in a clear sentence and loses nothing."""
