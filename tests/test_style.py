"""How the modules are laid out: their sections, their order, their size, and what they do when they are imported."""

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import child_environment
from wire import MODULE, MODULES

import lancelot

SOURCES = {path.name: path.read_text(encoding="utf-8") for path in MODULES}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
MAIN = MODULE.name
each_module = pytest.mark.parametrize("module", SOURCES)
RULE = "# " + "=" * 118
OWNERS = {
    "cryptography": {"Config"},
    "keyring": {"Config"},
    "platformdirs": {"Config"},
    "secretstorage": {"Config"},
    "filelock": {"Run"},
    "lancedb": {"Store", "Table"},
    "numpy": {"Embedder", "Store"},
    "onnxruntime": {"Embedder"},
    "tokenizers": {"Embedder"},
    "chardet": {"Reading"},
    "pypdfium2": {"Reading"},
    "python_calamine": {"Reading"},
    "semantic_text_splitter": {"Chunks"},
    "pyarrow": {"Store", "Table", "top"},
    "httpx2": {"Embedder"},
    "openai": {"Embedder", "Tools"},
    "anyio": {"Demo", "Doctor", "Tools"},
    "mcp": {"Demo", "Doctor", "Tools"},
    "mammoth": {"Reading"},
    "striprtf": {"Reading"},
    "tomlkit": {"Client files"},
    "tqdm": {"Commands"},
    "watchfiles": {"Watching"},
}
"""Which sections import a package that is not Python's own; the commands `demo` and `doctor` are clients."""

SIZES = {
    "lancelot.py": (9035, 622),
    "lancelot_index.py": (1728, 113),
    "lancelot_reading.py": (2154, 122),
    "lancelot_setup.py": (1617, 98),
    "build.py": (1044, 62),
    "bootstrap.py": (232, 15),
}
"""The lines of each file and its definitions, methods included. They may go down; raising one is a decision with a reason."""


def banners(source: str) -> list[tuple[int, str]]:
    """The line and the name of each banner."""
    lines = source.splitlines()
    inner = range(1, len(lines) - 1)
    return [(at + 1, lines[at][2:]) for at in inner if lines[at - 1] == RULE == lines[at + 1]]


def section_of(module: str, line: int) -> str:
    return next((name for start, name in reversed(banners(SOURCES[module])) if start < line), "top")


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def defined_by(node: ast.stmt) -> set[str]:
    """The names that a statement of the module gives a meaning."""
    if isinstance(node, Definition):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


@dataclass(frozen=True)
class Use:
    """A name of the module that a definition of it uses."""

    line: int
    user: str
    used: str


def uses(tree: ast.Module) -> Iterator[Use]:
    """What each definition uses of the others; a parameter or variable of its own that has the same name is not meant."""
    places = {name: node.lineno for node in tree.body for name in defined_by(node)}
    for node in tree.body:
        own = {
            name.id for name in ast.walk(node) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)
        } | {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in places:
                for user in defined_by(node) or {"a statement"}:
                    if name.id not in own - defined_by(node):
                        yield Use(name.lineno, user, name.id)


def used_too_early(source: str) -> list[str]:
    """Names that are used above their definition, other than by definitions that they use themselves."""
    tree = ast.parse(source)
    places = {name: node.lineno for node in tree.body for name in defined_by(node)}
    graph: dict[str, set[str]] = {}
    for use in uses(tree):
        graph.setdefault(use.user, set()).add(use.used)

    def reaches(start: str, goal: str, seen: frozenset[str] = frozenset()) -> bool:
        later = graph.get(start, set()) - seen
        return goal in later or any(reaches(name, goal, seen | later) for name in later)

    return [
        f"{use.user} (line {use.line}) uses {use.used}"
        for use in uses(tree)
        if places[use.used] > places.get(use.user, use.line) and not reaches(use.used, use.user)
    ]


# Sections


@each_module
def test_the_sections_of_the_docstring_are_the_banners_in_order(module: str) -> None:
    listed = re.findall(r"^(\S.*?)  +\S", ast.get_docstring(TREES[module]) or "", re.MULTILINE)
    assert listed == [name for _, name in banners(SOURCES[module])]
    assert listed


@each_module
def test_each_section_begins_with_its_concepts_in_two_to_five_lines(module: str) -> None:
    lines = SOURCES[module].splitlines()
    for line, name in banners(SOURCES[module]):
        paragraph = [text for text in lines[line + 1 : line + 7] if text.startswith("# ")]
        assert 2 <= len(paragraph) <= 5, name


@each_module
def test_no_name_is_used_above_its_definition(module: str) -> None:
    assert used_too_early(SOURCES[module]) == []


@each_module
def test_no_name_is_given_two_meanings(module: str) -> None:
    names = [name for node in TREES[module].body for name in defined_by(node)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_search_for_early_uses_finds_one_and_leaves_recursion_alone() -> None:
    assert used_too_early("def a():\n    return b()\ndef b():\n    return 1") == ["a (line 2) uses b"]
    assert used_too_early("def a():\n    return b()\ndef b():\n    return c()\ndef c():\n    return a()") == []
    assert used_too_early("def a(b):\n    return b\nb = 1") == []
    assert used_too_early("class A:\n    x: B\nB = int") == ["A (line 2) uses B"]


# Size


def size_of(name: str) -> tuple[int, int]:
    source = MODULE.with_name(name).read_text(encoding="utf-8")
    return len(source.splitlines()), sum(isinstance(node, Definition) for node in ast.walk(ast.parse(source)))


@pytest.mark.parametrize("name", SIZES)
def test_no_file_grows_and_what_became_smaller_stays_so(name: str) -> None:
    found, allowed = size_of(name), SIZES[name]
    assert all(count <= most for count, most in zip(found, allowed, strict=True)), f"{name} grew to {found}"
    assert found[0] > allowed[0] - 50, f"lower the size of {name} to {found}"


def test_every_module_has_a_size() -> None:
    assert {*SOURCES, "build.py", "bootstrap.py"} == SIZES.keys()


@each_module
def test_nothing_is_declared_global(module: str) -> None:
    assert [node.lineno for node in ast.walk(TREES[module]) if isinstance(node, ast.Global)] == []


# Imports


def imports(node: ast.AST, *, inside: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Each import's line and package, and whether a function makes it; those for type checkers are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name.partition(".")[0], inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.lineno, (child.module or "").partition(".")[0], inside
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(child, inside=inside or function)


@each_module
def test_only_the_standard_library_is_imported_by_the_module_itself(module: str) -> None:
    own = {module.removesuffix(".py") for module in SOURCES} - {module.removesuffix(".py")}
    assert {name for _, name, inside in imports(TREES[module]) if not inside} <= sys.stdlib_module_names | own


def test_the_imports_between_the_modules_point_one_way() -> None:
    names = {module.removesuffix(".py") for module in SOURCES}
    found = {module: {name for _, name, _ in imports(tree)} & names for module, tree in TREES.items()}
    assert found == {
        MAIN: set(),
        "lancelot_reading.py": {"lancelot"},
        "lancelot_index.py": {"lancelot", "lancelot_reading"},
        "lancelot_setup.py": {"lancelot"},
    }
    texts = {
        module: {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in names - {"lancelot"}
        }
        for module, tree in TREES.items()
    }
    # Only the command line of the first one imports the others, by their names.
    assert texts == {module: names - {"lancelot"} if module == MAIN else set() for module in TREES}


def test_each_heavy_package_is_imported_by_the_sections_that_own_it() -> None:
    found: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        for line, name, _ in imports(tree):
            if name not in sys.stdlib_module_names and f"{name}.py" not in SOURCES:
                found.setdefault(name, set()).add(section_of(module, line))
    assert {name: sections for name, sections in found.items() if not sections <= OWNERS.get(name, set())} == {}
    assert {"mcp", "lancedb", "openai", "keyring"} <= set(found)


WATCH = """
import os, sys, types
for name in {names!r}:
    __import__(name)
code = compile(open({path!r}, encoding="utf-8").read(), "lancelot.py", "exec")
module = sys.modules["lancelot"] = types.ModuleType("lancelot")
class Tripwire:
    def __getattr__(self, name):
        print("environment:", name)
        raise KeyError(name)
    __getitem__ = __contains__ = __iter__ = get = __getattr__
os.environ = os.environb = Tripwire()
seen = []
quiet = ("object.", "compile", "exec", "import", "marshal", "sys._getframe", "code.__new__", "builtins.id", "sys.monitoring")
sys.addaudithook(lambda event, given: event.startswith(quiet) or seen.append((event, given)))
exec(code, module.__dict__)
{after}
print("events:", seen)
"""


def import_events(after: str = "") -> str:
    names = sorted(
        {name for _, name, inside in imports(TREES[MAIN]) if not inside}
        | {"collections.abc", "concurrent.futures", "html.parser", "urllib.parse"}
    )
    program = WATCH.format(names=names, path=str(MODULE), after=after)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout + done.stderr


def test_importing_the_module_reads_no_environment_and_no_file() -> None:
    assert import_events() == "events: []\n"


@pytest.mark.parametrize(
    ("after", "clue"), [("os.environ.get('HOME')", "environment: HOME"), ("open(os.devnull)", "('open',")]
)
def test_the_watch_on_the_import_sees_a_read(after: str, clue: str) -> None:
    assert clue in import_events(after)


# Settings


VARIABLE = re.compile(r"\b(?:LANCEDB|LANCELOT|OPENAI|EMBEDDING)_[A-Z][A-Z_]*\b")


def variables_named(source: str) -> set[str]:
    """What reads like a variable of ours in the texts and docstrings of a program."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {name for text in texts if isinstance(text, str) for name in VARIABLE.findall(text)}


def test_every_variable_that_the_modules_name_is_a_setting() -> None:
    named = set().union(*map(variables_named, SOURCES.values()))
    assert named <= {setting.name for setting in lancelot.SETTINGS}
    assert len(named) == len(lancelot.SETTINGS)


def test_the_search_for_variables_finds_one_in_a_sentence() -> None:
    assert variables_named('f"set LANCELOT_NOTHING to {1}"') == {"LANCELOT_NOTHING"}


def test_the_environment_is_read_in_four_places_only() -> None:
    users = [
        (module, node.lineno)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv")
        if isinstance(node.value, ast.Name) and node.value.id == "os"
    ]
    assert {(module, section_of(module, line)) for module, line in users} == {(MAIN, "Store"), (MAIN, "Command line")}
    assert len(users) == 4


# Errors


WORDS_OF_AN_ERROR = {"cause", "remedy", "why_not", "why_no_embeddings", "default_problem"}
HELD_ERRORS = re.compile(r"attr='(problems|reasons|unread|unreadable)'")
"""What holds errors and is gone through."""
READERS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "removesuffix",
    "removeprefix",
    "find",
    "index",
    "count",
}
READERS |= {"search", "match", "fullmatch", "findall"}


def holds_words(node: ast.AST, words: set[str], errors: set[str]) -> bool:
    """Whether an expression is made from an error's words: an attribute, a name that got them, or an error as a text."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr in WORDS_OF_AN_ERROR)
        or (isinstance(part, ast.Name) and part.id in words)
        or (isinstance(part, ast.Call | ast.FormattedValue) and named(part) & errors)
        for part in ast.walk(node)
    )


def named(node: ast.Call | ast.FormattedValue) -> set[str]:
    """The names and attributes that are made a text: by str(), or within an f-string."""
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")):
        return set()
    parts = [part for inner in ast.iter_child_nodes(node) for part in ast.walk(inner)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def errors_in(function: ast.AST) -> set[str]:
    """The names that a function gives to errors of ours: it catches them, takes them, or goes through them."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name and "LancelotError" in ast.dump(node.type or node):
            names.add(node.name)
        if isinstance(node, ast.arg) and "LancelotError" in ast.dump(node.annotation or node):
            names.add(node.arg)
        if isinstance(node, ast.comprehension | ast.For) and HELD_ERRORS.search(ast.dump(node.iter)):
            names |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
    return names


def readings(tree: ast.Module) -> list[str]:
    """Where a program compares or takes apart the words of an error, followed through variables and parameters."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    words: dict[str, set[str]] = {function.name: set() for function in functions}
    found: set[str] = set()
    for _ in range(4):  # as many functions as words are handed on through
        for function in functions:
            errors, known = errors_in(function), words[function.name]
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and holds_words(node.value, known, errors):
                    known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq):
                    read = [node.left, *node.comparators]
                    found |= {f"{node.lineno}" for part in read if holds_words(part, known, errors)}
                if isinstance(node, ast.Call):
                    hand_on(node, known, errors, functions, words)
                    is_reader = isinstance(node.func, ast.Attribute) and node.func.attr in READERS
                    found |= {f"{node.lineno}"} if is_reader and holds_words(node, known, errors) else set()
    return sorted(found)


def hand_on(
    call: ast.Call, known: set[str], errors: set[str], functions: list[Any], words: dict[str, set[str]]
) -> None:
    """Notes the parameters of a function of the module that get an error's words by a call."""
    for function in functions:
        if isinstance(call.func, ast.Name) and call.func.id == function.name:
            names = [argument.arg for argument in function.args.args]
            given = {**dict(zip(names, call.args, strict=False)), **{one.arg: one.value for one in call.keywords}}
            words[function.name] |= {
                name for name, value in given.items() if name and holds_words(value, known, errors)
            }


@each_module
def test_nothing_is_decided_by_the_words_of_an_error(module: str) -> None:
    assert readings(TREES[module]) == []


CAUGHT = """
def use():
    try:
        return 1
    except LancelotError as error:
"""


@pytest.mark.parametrize(
    "reading",
    [
        "return 'locked' in str(error)",
        "return error.cause.startswith('No ')",
        "return error.remedy == LOOK",
        "told = f'{error} more'\n        return 'refused' in told",
        "return str(error).partition('. ')[0]",
        "return re.search('x', error.cause)",
        "return [reason for reason in lookup.reasons if 'locked' in str(reason)]",
        "return is_unread(error.cause)\ndef is_unread(reason):\n    return 'locked' in reason",
        "pass\ndef check(status):\n    return status.error.cause.removesuffix('x')",
        "pass\ndef check(error: LancelotError):\n    return 'x' in str(error)",
    ],
)
def test_the_search_for_readings_of_words_finds_them(reading: str) -> None:
    assert readings(ast.parse(CAUGHT + " " * 8 + reading)) != []


def test_the_search_for_readings_of_words_leaves_kinds_and_sentences_alone() -> None:
    fine = (
        "told = f'{error} more'\n        return error.kind == 'changed' or Other(told.strip(), error.remedy or 'Look.')"
    )
    assert readings(ast.parse(CAUGHT + " " * 8 + fine)) == []
    assert readings(ast.parse(CAUGHT.replace("LancelotError", "RuntimeError") + " " * 8 + "'v1' in str(error)")) == []


def test_a_broad_except_stands_only_where_it_is_accounted_for() -> None:
    broad = {
        function.name
        for tree in TREES.values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for handler in ast.walk(function)
        if isinstance(handler, ast.ExceptHandler)
        if handler.type is None
        or (isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException"))
    }
    edges = {"build_server", "call", "call_tool", "main", "serve", "_outcome", "check_server", "load"}
    edges |= {"document_handlers", "handler", "handle"}
    raised_again = {"run", "bounded", "write_private", "engine_errors", "_keychain", "sheet_document"}
    assert edges <= broad <= edges | raised_again


def test_no_name_of_python_is_taken_for_another_thing() -> None:
    taken = {name for tree in TREES.values() for node in tree.body for name in defined_by(node)} & set(dir(builtins))
    assert taken - {"__doc__", "__name__"} == set()
