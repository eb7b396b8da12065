"""Parses `INFO` for comparison."""

import re


def fields(text):
    """Reads INFO as an exporter of metrics does. Each line has a name and a value."""
    found = {}
    for line in text.decode().split("\r\n"):
        if line and not line.startswith("# "):
            name, value = line.split(":", 1)
            found[name] = value
    return found


FORMS = {
    r"-?\d+": "number", r"-?\d+\.\d\d": "fraction", r"\d+\.\d{6}": "seconds", r"\d+\.\d\d%": "share",
    r"ok|err": "status",
    r"\d+B|\d+\.\d\d[KMGTPE]": "size", r"[0-9a-f]{40}": "identity", r"/.*": "path", r"": "nothing",
    r"calls=\d+,usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=\d+,failed_calls=\d+": "calls",
    r"p50=\d+\.\d{3},p99=\d+\.\d{3},p99\.9=\d+\.\d{3}": "percentiles", r"count=\d+": "count",
    r"keys=\d+,expires=\d+,avg_ttl=\d+": "database",
}


def form(value):
    """What a value looks like: a number, a word and so on. Programs that read INFO rely on this."""
    return next((name for pattern, name in FORMS.items() if re.fullmatch(pattern, value)), "word")


def sections(text):
    """The headings of INFO's sections, in order."""
    return [line for line in text.decode().split("\r\n") if line.startswith("# ")]
