"""Runs test modules by their names, and counts as the project's other suites do."""

import sys
import unittest

suite = unittest.TestLoader().loadTestsFromNames([f"test_{name}" for name in sys.argv[1:]])
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1).run(suite)
for test, why in result.skipped:
    print(f"skipped: {test.id()}: {why}")
failed = len(result.failures) + len(result.errors)
passed = result.testsRun - len({test.id().split()[0] for test, _ in result.failures + result.errors})
print(f"{passed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
sys.exit(failed != 0)
