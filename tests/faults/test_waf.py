"""`slimio waf`: the formula against the simulation, traces that are made and replayed, and refused
arguments."""

import os
import re
import tempfile

from harness.target import TestCase, slimio_only
from harness.tool import tool

SMALL = ("--units", 1000, "--unit-pages", 64)
# How far formula and simulation may differ, in percent.
TOLERANCE_PERCENT = 1.0


@slimio_only
class Waf(TestCase):
    seconds = 30

    def said(self, *args):
        code, text = tool("waf", *args)
        self.assertEqual(code, 0, text)
        return text

    def refused(self, *args):
        code, text = tool("waf", *args)
        self.assertEqual(code, 1, text)
        self.assertEqual(text.count("\n"), 1, "an error must be one line")
        return text

    def test_formula_and_simulation_agree_in_both_readings(self):
        text = self.said("--model", "--spare", 0.1, "--trim", 0.1, *SMALL)
        for name, waf in (("no trims", 5.179), ("trims of any page", 2.940), ("trims of live pages", 2.823)):
            with self.subTest(name):
                row = re.search(rf"^{name} +([\d.]+) +([\d.]+) +([\d.]+) +([-+][\d.]+) % +([\d.]+)", text, re.M)
                self.assertIsNotNone(row, text)
                _live, model, simulated, error, greedy = map(float, row.groups())
                self.assertEqual(model, waf)
                self.assertLess(abs(error), TOLERANCE_PERCENT)
                self.assertLess(abs(simulated / waf - 1) * 100, TOLERANCE_PERCENT)
                self.assertLess(greedy, model, "greedy collection must copy less")
        self.assertEqual(text, self.said("--model", "--spare", 0.1, "--trim", 0.1, *SMALL), "equal seeds must give equal output")

    def test_a_drive_that_collects_only_when_it_must_copies_less(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            self.said("generate", "--keys", 1.5, "--size", "720M", "--out", trace)
            eager = self.replayed(trace, "--background", 0.25)
            self.assertEqual(eager, self.replayed(trace), "the default of --background must be 0.25")
            lazy = self.replayed(trace, "--background", 0)
            self.assertGreater(eager, 1.05)
            self.assertEqual(lazy, 1)

    def test_a_log_that_is_rewritten_often_is_no_reason_to_end(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            self.said("generate", "--log", 0.3, "--size", "720M", "--out", trace)
            self.assertGreaterEqual(self.replayed(trace, "--background", 0), 1)

    def test_a_trace_that_came_to_nothing_is_not_left(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            with open(trace, "w", encoding="utf-8") as file:
                file.write("an older one")
            for wrong, said in ((("--size", "10M"), "take a larger --size"),
                                (("--size", "720M", "--keys", 9), "take fewer --keys")):
                self.assertIn(said, self.refused("generate", *wrong, "--out", trace))
                self.assertEqual(os.listdir(folder), ["trace"])
            with open(trace, encoding="utf-8") as file:
                self.assertEqual(file.read(), "an older one")
            # If the path names a device, the trace is written into the device. No file replaces the
            # device.
            self.said("generate", "--size", "720M", "--repetitions", 1, "--out", "/dev/null")
            self.assertFalse(os.path.isfile("/dev/null"))

    def replayed(self, trace, *args):
        text = self.said(trace, "--handles", 1, *args)
        return float(re.search(r"^\| 1 \| \d+ \| \d+ \| \d+ \| ([\d.]+) \|", text, re.M).group(1))

    def test_what_makes_no_sense_is_refused_with_a_sentence(self):
        self.assertIn("without spare space nothing can be collected", self.refused("--model", "--spare", 0))
        self.assertIn("not all of the NAND can be spare", self.refused("--model", "--spare", 1.5))
        self.assertIn("0 or more", self.refused("--model", "--trim", -0.1))
        self.assertIn("simulate more --units", self.refused("--model", "--spare", 0.0001))
        self.assertIn("name a trace", self.refused())
        self.assertIn("at least 0 and less than 1", self.refused("trace", "--background", 1))

    def test_trimming_all_that_is_written_has_no_steady_state(self):
        text = self.said("--model", "--trim", 1, *SMALL)
        self.assertIn("keeps nothing", text)
