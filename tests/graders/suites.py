"""Test suites to run: what runners print about passing, failing, odd and hostile tests."""

BASIC = '''
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2, "one - is not two"
def test_raises(): raise KeyError("a - b")
@pytest.mark.skip(reason="not - now")
def test_skipped(): pass
@pytest.mark.xfail(reason="bug - 3")
def test_xfails(): assert False
@pytest.mark.xfail
def test_xpasses(): pass
@pytest.mark.xfail(strict=True)
def test_xpasses_strictly(): pass
class TestGroup:
    def test_inner(self): pass
    class TestDeep:
        def test_deeper(self): assert []
'''

PARAMS = '''
import pytest
VALUES = ["a b", "a - b", "x]y", "[z", "/usr/lib/x", "//net/x", "/a/*.py", "", "caf\\u00e9", "tab\\tx", "new\\nline", "1" * 80,
          "PASSED", "a::b", "MouseButton.LEFT", "50%]"]
@pytest.mark.parametrize("value", VALUES)
def test_all(value): pass
@pytest.mark.parametrize("value", VALUES)
def test_none(value): assert not value, "%s - no" % value
@pytest.mark.parametrize("one,two", [(1, 2.5), (None, True), (b"x", [1])])
def test_types(one, two): assert one != 1
'''

ERRORS = '''
import pytest
@pytest.fixture
def broken(): raise RuntimeError("set-up - fails")
@pytest.fixture
def leaves():
    yield 1
    raise RuntimeError("teardown fails")
def test_setup(broken): pass
def test_teardown(leaves): pass
def test_both(leaves): assert 0
def test_fine(): pass
'''

IMPORT = '''
import no_such_module_at_all
def test_never(): pass
'''

SYNTAX = '''
def test_never(:
'''

OUTPUT = '''
import sys
def test_prints():
    print("PASSED fake::one")
    print("FAILED fake::two - x")
    print("fake.py::three PASSED [ 10%]")
    print("ok")
    print("test_x (m.C) ... ok")
    print("\\x1b[31mFAILED\\x1b[0m fake::four")
def test_prints_and_fails():
    print("ERROR fake::five")
    print("ERROR: fake six", file=sys.stderr)
    print(">>>>> nearly a mark")
    assert False
def test_long():
    print("x" * 5000)
def test_carriage():
    sys.stdout.write("10%\\rPASSED fake::seven\\r100%\\r\\n")
    assert "a" == "b" * 300
'''

CASES = '''
import unittest
class TestOne(unittest.TestCase):
    def test_a(self): pass
    def test_b(self):
        """Says what it does."""
        self.assertEqual(1, 2)
    @unittest.skip("later - maybe")
    def test_c(self): pass
    @unittest.expectedFailure
    def test_d(self): self.fail()
    @unittest.expectedFailure
    def test_e(self): pass
    def test_f(self): raise ValueError("x")
    def test_g(self):
        """Two lines of words

        and more of them."""
    def test_h(self):
        print("printed by the test")
    def test_i(self):
        for i in range(3):
            with self.subTest(i=i): self.assertNotEqual(i, 1)
class TestBroken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("no class")
    def test_a(self): pass
'''

EMPTY = '''
def helper(): pass
'''

SKIPS = '''
import pytest
pytestmark = pytest.mark.skipif(True, reason="whole file")
def test_a(): pass
@pytest.mark.parametrize("n", range(3))
def test_b(n): pass
'''

PASSES = '''
import pytest
@pytest.mark.parametrize("n", range(25))
def test_n(n): pass
def test_z(): pass
'''

CONFTEST = '''
import no_such_plugin_module
'''

# Name, files.
PYTEST = {
    "basic": {"test_basic.py": BASIC},
    "params": {"test_params.py": PARAMS},
    "errors": {"test_errors.py": ERRORS, "test_passes.py": PASSES},
    "collection": {"test_import.py": IMPORT, "test_syntax.py": SYNTAX, "test_passes.py": PASSES},
    "output": {"test_output.py": OUTPUT},
    "cases": {"pkg/__init__.py": "", "pkg/test_cases.py": CASES},
    "empty": {"test_empty.py": EMPTY},
    "skips": {"test_skips.py": SKIPS, "deep/er/test_passes.py": PASSES},
    "passes": {"test_passes.py": PASSES},
    "conftest": {"conftest.py": CONFTEST, "test_passes.py": PASSES},
    "all": {"test_basic.py": BASIC, "test_params.py": PARAMS, "test_errors.py": ERRORS, "sub/test_output.py": OUTPUT},
}

# Each a way in which data sets run pytest.
PYTEST_OPTIONS = {
    "rA": ["-rA"],
    "rA-v": ["-rA", "-v"],
    "rA-short": ["-rA", "--tb=short", "-p", "no:cacheprovider"],
    "rA-q": ["-rA", "-q"],
    "classic": ["-rA", "-vv", "-o", "console_output_style=classic", "--tb=no"],
    "colour": ["-rA", "--color=yes"],
    "v-alone": ["-v"],
    "plain": [],
    "xdist": ["-rA", "-v", "-n", "2"],
    "count": ["-rA", "-v", "-o", "console_output_style=count"],
}

GO = {
    "go.mod": "module example.org/m\n\ngo 1.20\n",
    "a/a_test.go": '''package a
import ("testing"; "fmt")
func TestPass(t *testing.T) { fmt.Println("--- not a verdict") }
func TestFail(t *testing.T) { t.Errorf("no (%d)", 1) }
func TestSkip(t *testing.T) { t.Skip("later") }
func TestSub(t *testing.T) {
	for _, name := range []string{"plain", "with space", "with (brackets) (0.01s)", "sl/ash", "caf\\u00e9"} {
		t.Run(name, func(t *testing.T) { if name == "sl/ash" { t.Fatal("x") } })
	}
}
func TestShared(t *testing.T) {}
func ExampleHello() {
	fmt.Println("hello")
	// Output: hello
}
''',
    "b/b_test.go": '''package b
import "testing"
func TestShared(t *testing.T) { t.Fail() }
func TestOnlyHere(t *testing.T) {}
''',
    "c/c_test.go": '''package c
import "testing"
func TestNever(t *testing.T) { undefined() }
''',
    "d/d_test.go": '''package d
import "testing"
func TestBefore(t *testing.T) {}
func TestPanics(t *testing.T) { panic("oh") }
func TestAfter(t *testing.T) {}
''',
}

GO_RUNS = {
    "v-a": ["-v", "./a"],
    "v-b": ["-v", "./b"],
    "v-all": ["-v", "./..."],
    "plain": ["./..."],
    "v-ab": ["-v", "./a", "./b"],
    "v-panic": ["-v", "./d"],
    "v-run": ["-v", "-run", "TestSub", "./a"],
    "v-c": ["-v", "./c"],
    "json": ["-json", "./..."],
    "json-a": ["-json", "./a"],
}

CARGO = {
    "Cargo.toml": '[package]\nname = "grading"\nversion = "0.1.0"\nedition = "2021"\n\n[workspace]\n',
    "src/lib.rs": '''//! ```
//! assert_eq!(grading::two(), 2);
//! ```
/// Two.
/// ```
/// assert_eq!(grading::two(), 3);
/// ```
pub fn two() -> u32 { 2 }
#[cfg(test)]
mod tests {
    #[test] fn passes() { println!("test printed ... ok"); }
    #[test] fn fails() { assert_eq!(1, 2); }
    #[test] #[ignore = "slow"] fn ignored() {}
    #[test] #[should_panic] fn panics() { panic!() }
    mod deep { #[test] fn passes() {} }
}
''',
    "tests/whole.rs": "#[test] fn passes() {}\n#[test] fn shared() {}\nmod tests { #[test] fn passes() { panic!(); } }\n",
}

CARGO_RUNS = {
    "all": ["--no-fail-fast"],
    "first": [],
    "lib": ["--lib"],
    "one-thread": ["--lib", "--", "--test-threads=1", "--nocapture"],
    "doc": ["--doc"],
    "ignored": ["--", "--include-ignored"],
}

JEST = {
    "package.json": '{"name": "grading", "version": "1.0.0"}',
    "sums.test.js": '''
describe("sums", () => {
  test("adds", () => expect(1 + 1).toBe(2));
  test("fails (5 ms)", () => expect(1).toBe(2));
  test.skip("skipped one", () => {});
  test.todo("later");
  describe("deep", () => { it("adds", () => console.log("✓ printed (1 ms)")); it("  blanks  ", () => {}); });
});
test("top", () => {});
test("slow", async () => { await new Promise((r) => setTimeout(r, 300)); });
''',
    "broken.test.js": 'require("./no-such-file");\ntest("never", () => {});\n',
    "passes.test.js": 'for (let i = 0; i < 8; i++) test(`number ${i}`, () => {});\n',
}

JEST_RUNS = {
    "verbose": ["--verbose"],
    "verbose-one": ["--verbose", "sums"],
    "plain": [],
    "passes": ["--verbose", "passes"],
    "colour": ["--verbose", "--color"],
    "broken": ["--verbose", "broken"],
}

NODE = '''
const test = require("node:test");
const assert = require("node:assert");
test("adds", () => assert.equal(2, 1 + 1));
test("fails", () => assert.equal(1, 2));
test("skipped", { skip: "no disk" }, () => {});
test("todo", { todo: true }, () => assert.fail());
test("outer", async (t) => { await t.test("inner # hash", () => {}); await t.test("inner fails", () => assert.fail()); });
'''

DJANGO_SETTINGS = '''
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "app"]
USE_TZ = True
ROOT_URLCONF = "app.urls"
'''

DJANGO_TESTS = '''
from django.test import TestCase, SimpleTestCase
import unittest
class One(TestCase):
    def test_a(self): pass
    def test_b(self):
        """Says what it does ... in words."""
    def test_c(self): self.assertEqual(1, 2)
    def test_d(self): raise ValueError("d")
    @unittest.skip("later ... maybe")
    def test_e(self): pass
    @unittest.expectedFailure
    def test_f(self): self.fail()
    def test_g(self): print("printed")
    def test_h(self):
        for i in range(2):
            with self.subTest(i=i): self.assertEqual(i, 0)
    def test_i(self):
        self.client.raise_request_exception = False
        self.client.get("/breaks/")
class Two(SimpleTestCase):
    def test_a(self): pass
    def test_broken_docs(self):
        """Fails, and says so."""
        self.fail("two")
class Three(TestCase):
    @classmethod
    def setUpTestData(cls): raise RuntimeError("no data")
    def test_a(self): pass
'''

DJANGO_URLS = '''
from django.urls import path
def breaks(request): raise RuntimeError("view")
urlpatterns = [path("breaks/", breaks)]
'''
