"""Tests of what happens when something is wrong. Each case must end with a clear message, and
nothing may be lost."""
