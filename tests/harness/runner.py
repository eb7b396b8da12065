"""Finds the tests, runs their classes in parallel, and prints results as cargo does."""

import importlib
import multiprocessing
import os
import signal
import time
import traceback
import unittest

from .target import TARGET

FOLDERS = ["clients", "differential", "faults"]
# Only a test that hangs takes this long, whatever else the machine does.
TEST_SECONDS_MAX = 600
# The limit is higher with `--every-call`, because then a test takes longer.
TEST_SECONDS_MAX_EVERY_CALL = 3600


def find(root, words):
    """Test classes as (module, class, test names). The class that takes longest comes first."""
    found = []
    for folder in FOLDERS:
        names = sorted(os.listdir(os.path.join(root, folder)))
        for name in names:
            if not (name.startswith("test_") and name.endswith(".py")):
                continue
            module = importlib.import_module(f"{folder}.{name[:-3]}")
            for case in vars(module).values():
                if not (isinstance(case, type) and issubclass(case, unittest.TestCase)):
                    continue
                if case.__module__ != module.__name__:
                    continue
                tests = [
                    test
                    for test in unittest.TestLoader().getTestCaseNames(case)
                    if matches(f"{module.__name__}.{case.__name__}.{test}", words)
                ]
                if tests:
                    found.append((module.__name__, case.__name__, tests))
    found.sort(key=lambda entry: -weight(entry))
    return found


def weight(entry):
    module, case, _ = entry
    return getattr(getattr(importlib.import_module(module), case), "seconds", 1)


def matches(name, words):
    return not words or any(word in name for word in words)


def run_class(work):
    """Runs the tests of a class, in a separate process. Returns (name, outcome, seconds, detail) of
    each test."""
    (module, case_name, tests), way = work
    way.choose()
    case = getattr(importlib.import_module(module), case_name)
    signal.signal(signal.SIGALRM, give_up)
    results = []
    for test in tests:
        name = f"{module}.{case_name}.{test}{way.mark}"
        result = unittest.TestResult()
        started = time.monotonic()
        signal.alarm(seconds_max())
        try:
            unittest.TestSuite([case(test)]).run(result)
        except Exception:
            result.errors.append((test, traceback.format_exc()))
        signal.alarm(0)
        seconds = time.monotonic() - started
        problems = [f"{where}\n{detail}" for where, detail in result.failures + result.errors]
        if problems:
            results.append((name, "FAILED", seconds, "\n".join(problems)))
        elif result.skipped:
            results.append((name, "ignored", seconds, result.skipped[0][1]))
        else:
            results.append((name, "ok", seconds, ""))
    return results


def seconds_max():
    return TEST_SECONDS_MAX_EVERY_CALL if TARGET.is_every_call else TEST_SECONDS_MAX


def give_up(*_):
    raise TimeoutError(f"the test takes longer than {seconds_max()} s")


def run(root, words, jobs, ways):
    """Runs each test with each `Way` of starting the server. Returns whether all tests passed."""
    work = [(entry, way) for entry in find(root, words) for way in ways]
    started = time.monotonic()
    results = []
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for batch in pool.imap_unordered(run_class, work):
            for name, outcome, seconds, detail in batch:
                print(f"test {name} ... {outcome} ({seconds:.1f} s)", flush=True)
                results.append((name, outcome, detail))
    failures = [(name, detail) for name, outcome, detail in results if outcome == "FAILED"]
    for name, detail in failures:
        print(f"\n---- {name} ----\n{detail}")
    skips = [(name, detail) for name, outcome, detail in results if outcome == "ignored"]
    print()
    for reason in sorted({reason for _, reason in skips}):
        names = sorted(name for name, detail in skips if detail == reason)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"SKIPPED: {shown}: {reason}")
    passed = len(results) - len(failures) - len(skips)
    verdict = "FAILED" if failures or not results else "ok"
    took = time.monotonic() - started
    print(
        f"test result: {verdict}. {passed} passed; {len(failures)} failed; "
        f"{len(skips)} ignored; finished in {took:.1f}s"
    )
    return verdict == "ok"
