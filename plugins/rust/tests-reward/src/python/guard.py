"""Checks that have to fail, added behind the tests that pytest collects: where one passes, the process that judges was changed."""

import unittest

import pytest

NONCE = __name__.rsplit("_", 1)[1]
CASE = unittest.TestCase("run")


def statement():
    assert 1 == 2


def error():
    raise AssertionError("this has to fail")


def equal():
    CASE.assertEqual(1, 2)


def truth():
    CASE.assertTrue(False)


def raises_of_unittest():
    with CASE.assertRaises(ValueError):
        pass


def raises_of_pytest():
    with pytest.raises(ValueError):
        pass


def fail():
    pytest.fail("this has to fail")


CHECKS = [statement, error, equal, truth, raises_of_unittest, raises_of_pytest, fail]


class Check(pytest.Item):
    def runtest(self):
        CHECKS[int(self.name.rsplit("_", 1)[1]) % len(CHECKS)]()

    def reportinfo(self):
        return "espalier", None, self.name


def of_function(module, name):
    """A check that runs as test functions do."""
    return [pytest.Function.from_parent(module, name=name, callobj=statement)]


def of_case(module, name):
    """A check that runs as tests of unittest do."""
    from _pytest.unittest import UnitTestCase

    collector = UnitTestCase.from_parent(module, name="Checks")
    collector.obj = type("Checks", (unittest.TestCase,), {name: lambda self: self.assertEqual(1, 2)})
    return list(collector.collect())


def plain(session, name):
    make = getattr(Check, "from_parent", None)
    return [make(session, name=name) if make else Check(name, session)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session, config, items):
    modules = [module for module in (item.getparent(pytest.Module) for item in items) if module is not None]
    for number in range(len(CHECKS)):
        items.extend(plain(session, "espalier_%s_%d" % (NONCE, number)))
    for number, make in enumerate([of_function, of_case], len(CHECKS)):
        name = "test_espalier_%s_%d" % (NONCE, number)
        try:
            items.extend(make(modules[0], name))
        except Exception:
            # A version that builds its tests in another way: the check is there all the same, as one of the others.
            items.extend(plain(session, "espalier_%s_%d" % (NONCE, number)))
