"""The settings: where each comes from, what each parser takes, and the file that holds them."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancelot

Make = Callable[..., lancelot.Settings]

DEFAULTS = {
    "LANCEDB_PATH": None,
    "LANCEDB_API_KEY": None,
    "LANCEDB_REGION": "us-east-1",
    "LANCEDB_HOST_OVERRIDE": None,
    "LANCEDB_TABLE": "documents",
    "LANCEDB_TEXT_COLUMN": "text",
    "LANCEDB_VECTOR_COLUMN": "vector",
    "LANCEDB_DEFAULT_LIMIT": 20,
    "LANCEDB_CONTEXT_BUDGET": 8000,
    "LANCELOT_SEARCH_TYPE": "auto",
    "OPENAI_API_KEY": None,
    "OPENAI_BASE_URL": None,
    "EMBEDDING_MODEL": "text-embedding-ada-002",
    "EMBEDDING_DIMENSIONS": 1536,
    "LANCELOT_EMBEDDING_TIMEOUT": 15.0,
    "LANCELOT_LOCAL_MODEL": "on",
    "LANCELOT_CHAT_MODEL": None,
    "LANCELOT_CHAT_BASE_URL": None,
    "LANCELOT_CHAT_API_KEY": None,
    "LANCELOT_CHAT_TIMEOUT": 120.0,
    "LANCELOT_INDEX_ROOTS": None,
    "LANCELOT_PASSPHRASE": None,
    "LANCELOT_LOG_LEVEL": "info",
}
# One good value a variable, other than its default: as it is written, and as it is read.
GOOD = {
    "LANCEDB_PATH": ("/data/db", "/data/db"),
    "LANCEDB_API_KEY": ("sk-l", "sk-l"),
    "LANCEDB_REGION": ("eu-west-1", "eu-west-1"),
    "LANCEDB_HOST_OVERRIDE": ("https://db.example.com", "https://db.example.com"),
    "LANCEDB_TABLE": ("notes", "notes"),
    "LANCEDB_TEXT_COLUMN": ("content", "content"),
    "LANCEDB_VECTOR_COLUMN": ("embedding", "embedding"),
    "LANCEDB_DEFAULT_LIMIT": ("7", 7),
    "LANCEDB_CONTEXT_BUDGET": ("2000.0", 2000),
    "LANCELOT_SEARCH_TYPE": ("Text", "text"),
    "OPENAI_API_KEY": ("sk-a", "sk-a"),
    "OPENAI_BASE_URL": ("http://localhost:11434", "http://localhost:11434/v1"),
    "EMBEDDING_MODEL": ("bge-m3", "bge-m3"),
    "EMBEDDING_DIMENSIONS": ("1024", 1024),
    "LANCELOT_EMBEDDING_TIMEOUT": ("2.5", 2.5),
    "LANCELOT_LOCAL_MODEL": ("off", "off"),
    "LANCELOT_CHAT_MODEL": ("qwen2.5:3b", "qwen2.5:3b"),
    "LANCELOT_CHAT_BASE_URL": ("https://host/api/chat/completions", "https://host/api"),
    "LANCELOT_CHAT_API_KEY": ("sk-c", "sk-c"),
    "LANCELOT_CHAT_TIMEOUT": ("300", 300.0),
    "LANCELOT_INDEX_ROOTS": (f"/a{os.pathsep}/b c{os.pathsep}", ("/a", "/b c")),
    "LANCELOT_PASSPHRASE": ("a long one", "a long one"),
    "LANCELOT_LOG_LEVEL": ("DEBUG", "debug"),
}
SECRETS = {"LANCEDB_API_KEY", "OPENAI_API_KEY", "LANCELOT_CHAT_API_KEY", "LANCELOT_PASSPHRASE"}
WHOLE_LIMIT = "a whole number from 1 to 200"
WHOLE_BUDGET = "a whole number from 200 to 1,000,000"
WHOLE_LENGTH = "a whole number from 1 to 100,000"
FOLDERS = f"absolute folders, joined by {os.pathsep}"
SECONDS = "a number of seconds above 0 and at most 600"
ADDRESS = "an address such as http://localhost:11434/v1"
LEVELS = "one of error, warn, info, http, verbose, debug, silly"
BAD = [
    *(
        ("LANCEDB_DEFAULT_LIMIT", value, WHOLE_LIMIT)
        for value in ("0", "201", "-3", "2.5", "1e2", "nan", "many", "9" * 40)
    ),
    *(("LANCEDB_CONTEXT_BUDGET", value, WHOLE_BUDGET) for value in ("199", "1000001", "8 000", "inf")),
    *(("EMBEDDING_DIMENSIONS", value, WHOLE_LENGTH) for value in ("0", "100001", "x")),
    *(("LANCELOT_EMBEDDING_TIMEOUT", value, SECONDS) for value in ("0", "-1", "600.5", "nan", "inf", "15s")),
    *(
        ("LANCELOT_SEARCH_TYPE", value, "one of vector, text, fts, hybrid, auto")
        for value in ("semantic", "vector,text")
    ),
    *(("LANCELOT_LOG_LEVEL", value, LEVELS) for value in ("trace", "3")),
    *(("LANCELOT_INDEX_ROOTS", value, FOLDERS) for value in ("docs", f"/a{os.pathsep}b", os.pathsep)),
    *(("LANCELOT_CHAT_TIMEOUT", value, SECONDS) for value in ("0", "601", "2m")),
    *(("LANCELOT_CHAT_BASE_URL", value, ADDRESS) for value in ("localhost:11434", "ftp://host/v1", "http://h h/v1")),
    *(
        ("OPENAI_BASE_URL", value, ADDRESS)
        for value in (
            "localhost:11434",
            "ftp://host/v1",
            "http://",
            "http://h:99999",
            "http://h:0",
            "http://[",
            "http://h h/v1",
            "x",
        )
    ),
]


def write_file(config_dir: Path, content: object) -> Path:
    config_dir.mkdir(parents=True, exist_ok=True)
    path = config_dir / "settings.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def value_of(settings: lancelot.Settings, name: str) -> Any:
    (field,) = (setting.field for setting in lancelot.SETTINGS if setting.name == name)
    return getattr(settings, field)


# --- the table and where values come from


def test_every_variable_has_its_default(config_dir: Path) -> None:
    settings = lancelot.load_settings({}, config_dir)
    assert {setting.name: value_of(settings, setting.name) for setting in lancelot.SETTINGS} == DEFAULTS
    assert set(settings.origins.values()) == {"default"}
    assert settings.problems == ()
    assert settings.endpoint == "https://api.openai.com/v1"
    assert settings.chat_endpoint == "http://localhost:11434/v1"


def test_every_variable_says_what_it_is_for() -> None:
    assert all(setting.help.endswith((".", ". ")) and len(setting.help) > 20 for setting in lancelot.SETTINGS)
    assert {setting.name for setting in lancelot.SETTINGS if setting.secret} == SECRETS


@pytest.mark.parametrize("name", GOOD)
def test_the_environment_comes_before_the_file_and_the_file_before_the_default(
    name: str, make_settings: Make, config_dir: Path
) -> None:
    written, read = GOOD[name]
    secret = name in SECRETS
    write_file(config_dir, {name: written})
    from_file = lancelot.load_settings({}, config_dir)
    assert value_of(from_file, name) == (None if secret else read)
    assert from_file.origins[name] == ("default" if secret else "settings file")

    write_file(config_dir, {name: "nonsense that is no value"})
    from_environment = make_settings(**{name: written})
    assert value_of(from_environment, name) == read
    assert from_environment.origins[name] == "environment"
    assert from_environment.is_set(name)
    assert bool(from_environment.problems) == secret


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("blank", ["", " ", "\t\r\n "])
def test_a_blank_value_counts_as_not_set(name: str, blank: str, make_settings: Make, config_dir: Path) -> None:
    settings = make_settings(**{name: blank})
    assert value_of(settings, name) == DEFAULTS[name]
    assert not settings.is_set(name)
    assert settings.problems == ()
    write_file(config_dir, {name: blank})
    assert make_settings().problems == ()


def test_a_blank_variable_leaves_the_file_s_value(make_settings: Make, config_dir: Path) -> None:
    write_file(config_dir, {"LANCEDB_TABLE": "notes"})
    assert make_settings(LANCEDB_TABLE="  ").table == "notes"


def test_white_space_round_a_value_is_not_part_of_it(make_settings: Make) -> None:
    settings = make_settings(LANCEDB_TABLE=" notes\n", OPENAI_API_KEY="\tsk-a \r\n", LANCEDB_DEFAULT_LIMIT=" 5 ")
    assert (settings.table, settings.api_key, settings.default_limit) == ("notes", "sk-a", 5)


def test_numbers_in_the_file_need_no_quotes(make_settings: Make, config_dir: Path) -> None:
    write_file(config_dir, {"LANCEDB_DEFAULT_LIMIT": 5, "LANCELOT_EMBEDDING_TIMEOUT": 1.5, "LANCEDB_TABLE": ["a"]})
    settings = make_settings()
    assert (settings.default_limit, settings.embedding_timeout, settings.table) == (5, 1.5, "documents")


# --- values that do not parse


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
@pytest.mark.parametrize("origin", ["environment", "settings file"])
def test_a_bad_value_is_told_with_what_is_allowed_and_the_default_is_used(  # noqa: PLR0913, PLR0917 - a row of the table and two fixtures
    name: str, value: str, allowed: str, origin: str, make_settings: Make, config_dir: Path
) -> None:
    if origin == "settings file":
        write_file(config_dir, {name: value})
    settings = make_settings(**({name: value} if origin == "environment" else {}))
    (problem,) = settings.problems
    assert (problem.kind, problem.remedy) == ("invalid", f"Correct {name}, or unset it.")
    assert problem.cause.startswith(f"{name} ({origin}) is ")
    assert f'"{value}"' in problem.cause
    assert f"allowed is {allowed}; " in problem.cause
    default = DEFAULTS[name]
    assert problem.cause.endswith("no value is used." if default is None else f"the default {default} is used.")
    assert value_of(settings, name) == default
    assert not settings.is_set(name)


def test_a_long_or_many_lined_bad_value_stays_one_short_line(make_settings: Make) -> None:
    (problem,) = map(str, make_settings(LANCEDB_DEFAULT_LIMIT="line one\nline two " + "x" * 5000).problems)
    assert "\n" not in problem
    assert "line one line two" in problem
    assert len(problem) < 300


def test_every_wrong_setting_is_told_at_once(make_settings: Make) -> None:
    settings = make_settings(LANCEDB_DEFAULT_LIMIT="x", EMBEDDING_DIMENSIONS="y", LANCELOT_LOG_LEVEL="z")
    assert [str(problem).split()[0] for problem in settings.problems] == [
        "LANCEDB_DEFAULT_LIMIT",
        "EMBEDDING_DIMENSIONS",
        "LANCELOT_LOG_LEVEL",
    ]


def test_a_bad_value_of_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, config_dir: Path) -> None:
    def refuse(_text: str) -> str:
        message = "a key"
        raise ValueError(message)

    refusing = lancelot.Setting("OPENAI_API_KEY", "A key.", refuse, secret=True, field="api_key")
    others = (setting for setting in lancelot.SETTINGS if setting.name != "OPENAI_API_KEY")
    monkeypatch.setattr(lancelot, "SETTINGS", (refusing, *others))
    settings = lancelot.load_settings({"OPENAI_API_KEY": "sk-very-secret"}, config_dir)
    (problem,) = map(str, settings.problems)
    assert problem.startswith("OPENAI_API_KEY (environment) is a value, but allowed is a key")
    assert "sk-very-secret" not in problem + repr(settings)


def test_secrets_are_not_part_of_what_settings_print(make_settings: Make) -> None:
    shown = repr(make_settings(OPENAI_API_KEY="sk-very-secret", LANCELOT_PASSPHRASE=GOOD["LANCELOT_PASSPHRASE"][0]))
    assert "sk-very-secret" not in shown
    assert GOOD["LANCELOT_PASSPHRASE"][0] not in shown


# --- the path


def test_a_tilde_in_the_path_is_the_home_folder(make_settings: Make, machine: Path) -> None:
    assert make_settings(LANCEDB_PATH="~/my data/db").path == f"{machine}/my data/db"
    assert make_settings(LANCEDB_PATH="/a/~/b").path == "/a/~/b"


def test_a_relative_path_is_noted_as_depending_on_the_client(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = make_settings(LANCEDB_PATH="data/db")
    assert settings.path == "data/db"
    (problem,) = map(str, settings.problems)
    assert '"data/db"' in problem
    assert "absolute" in problem


@pytest.mark.parametrize("address", ["s3://bucket/folder", "gs://bucket", "az://c/d/", "db://name", "S3+ddb://b/~/c"])
def test_an_object_store_address_is_kept_as_it_is(address: str, make_settings: Make) -> None:
    settings = make_settings(LANCEDB_PATH=address)
    assert settings.path == address
    assert settings.problems == ()


@pytest.mark.parametrize("address", ["file:///data/a%20b", "FILE://localhost/data/a%20b"])
def test_a_file_address_is_read_as_its_path(address: str, make_settings: Make) -> None:
    assert make_settings(LANCEDB_PATH=address).path == os.path.normpath("/data/a b")


def test_a_file_address_of_another_machine_is_refused(make_settings: Make) -> None:
    settings = make_settings(LANCEDB_PATH="file://server/data")
    assert settings.path is None
    assert "an address such as file:///home/me/lancedb" in str(settings.problems[0])


@pytest.mark.parametrize("path", [r"C:\data\db", "C:/data/db", "c://data/db"])
def test_a_drive_of_windows_is_no_scheme(path: str) -> None:
    assert not lancelot.is_address(path)


# --- the base URL


@pytest.mark.parametrize(
    ("given_url", "read"),
    [
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434/", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1/", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1/embeddings", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1/embeddings/", "http://localhost:11434/v1"),
        ("http://localhost:11434/embeddings", "http://localhost:11434/v1"),
        ("https://example.com/openai/api", "https://example.com/openai/api"),
        ("HTTP://[::1]:8080", "http://[::1]:8080/v1"),
        ("http://user:secret@host:1/v1", "http://user:secret@host:1/v1"),
    ],
)
def test_a_base_url_is_read_with_and_without_its_path(given_url: str, read: str, make_settings: Make) -> None:
    settings = make_settings(OPENAI_BASE_URL=given_url)
    assert (settings.base_url, settings.endpoint, settings.problems) == (read, read, ())


@pytest.mark.parametrize(
    "address",
    [
        "http://alice:hunter2@host:99999/v1",
        "ftp://alice:hunter2@host/v1",
        "alice:hunter2@host:11434",
        "http://alice:hun@ter2@host:99999",
        "http://alice:hunter2/x@host/v1",
        "http://alice:my hunter2@host/v1",
    ],
)
def test_a_bad_base_url_is_told_without_its_user_and_password(address: str, make_settings: Make) -> None:
    (problem,) = map(str, make_settings(OPENAI_BASE_URL=address).problems)
    assert "host" in problem
    assert not [part for part in ("alice", "hun", "ter2") if part in problem]


def test_user_and_password_of_the_server_are_in_no_answer(
    make_searcher: Callable[..., lancelot.Searcher], folder_copy: Callable[[str], Path]
) -> None:
    searcher = make_searcher(
        LANCEDB_PATH=folder_copy("no-vector"), OPENAI_BASE_URL="http://alice:hunter2@127.0.0.1:1/v1"
    )
    status = lancelot.examined_status(searcher)
    shown = lancelot.status_json(status, verbose=True) + lancelot.status_lines(status)
    shown += "".join(map(lancelot.check_lines, lancelot.examine(status, lancelot.CHECKS)))
    assert "127.0.0.1:1" in shown
    assert "hunter2" not in shown
    assert "alice" not in shown


# --- a settings file that is broken


@pytest.mark.parametrize(
    "content", ["", "not json", "[1, 2]", '"text"', "{", "null", '{"LANCEDB_TABLE": "a"} x', "{" * 9000]
)
def test_a_file_that_holds_no_object_is_told_and_not_used(content: str, make_settings: Make, config_dir: Path) -> None:
    path = write_file(config_dir, content)
    settings = make_settings(LANCEDB_DEFAULT_LIMIT=3)
    (problem,) = map(str, settings.problems)
    assert str(path) in problem
    assert "is not a JSON object" in problem
    assert "Run `init`" in problem
    assert (settings.table, settings.default_limit) == ("documents", 3)


def test_a_file_that_is_no_text_is_told_and_not_used(make_settings: Make, config_dir: Path) -> None:
    write_file(config_dir, "").write_bytes(b'{"LANCEDB_TABLE": "\xff\xfe"}')
    (problem,) = map(str, make_settings().problems)
    assert "cannot be read" in problem


def test_a_folder_in_the_file_s_place_is_told_and_not_used(make_settings: Make, config_dir: Path) -> None:
    (config_dir / "settings.json").mkdir(parents=True)
    (problem,) = map(str, make_settings().problems)
    assert "is no file, so its values are not used" in problem
    assert make_settings().table == "documents"


@pytest.mark.parametrize("address", ["https://example.com/v1?api-version=2", "https://example.com/v1#top"])
def test_an_address_with_a_query_is_refused_since_the_path_would_go_into_it(make_settings: Make, address: str) -> None:
    settings = make_settings(OPENAI_BASE_URL=address)
    assert settings.base_url is None
    assert settings.is_invalid("OPENAI_BASE_URL")


def test_quotes_that_a_shell_would_have_taken_away_are_no_part_of_the_path(make_settings: Make) -> None:
    assert make_settings(LANCEDB_PATH='"/some/where"').path == "/some/where"


def test_a_file_that_may_not_be_read_is_told_and_not_used(
    make_settings: Make, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> str:
        raise PermissionError(13, "Permission denied")

    path = write_file(config_dir, {"LANCEDB_TABLE": "notes"})
    monkeypatch.setattr(Path, "read_text", refuse)
    (problem,) = make_settings().problems
    assert problem.cause == f"The settings file {path} cannot be read (Permission denied), so its values are not used."


def test_no_settings_file_is_no_problem(make_settings: Make, config_dir: Path) -> None:
    assert make_settings().problems == ()
    config_dir.parent.mkdir()
    config_dir.write_text("a file where the folder would be")
    assert make_settings().problems == ()


def test_a_byte_order_mark_does_not_hide_the_file_s_values(make_settings: Make, config_dir: Path) -> None:
    write_file(config_dir, '\ufeff{"LANCEDB_TABLE": "notes"}')
    assert make_settings().table == "notes"


def test_a_secret_in_the_settings_file_is_not_used_and_that_is_told(make_settings: Make, config_dir: Path) -> None:
    write_file(config_dir, {"OPENAI_API_KEY": "sk-very-secret"})
    settings = make_settings()
    assert settings.api_key is None
    (problem,) = map(str, settings.problems)
    assert "OPENAI_API_KEY" in problem
    assert "sk-very-secret" not in problem


# --- anything at all


NAMES = [setting.name for setting in lancelot.SETTINGS]
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(
    environ=st.dictionaries(st.sampled_from(NAMES), ANY_TEXT),
    content=st.binary(max_size=60)
    | st.dictionaries(st.sampled_from(NAMES), ANY_JSON).map(lambda value: json.dumps(value).encode()),
)
def test_no_text_in_any_variable_or_in_the_file_stops_the_settings(
    tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str], content: bytes
) -> None:
    config_dir = tmp_path_factory.getbasetemp() / "any-settings"
    config_dir.mkdir(exist_ok=True)
    (config_dir / "settings.json").write_bytes(content)
    settings = lancelot.load_settings(environ, config_dir)
    for setting in lancelot.SETTINGS:
        if not settings.is_set(setting.name):
            assert value_of(settings, setting.name) == setting.default
    for problem in map(str, settings.problems):
        assert problem == lancelot.one_line(problem)


@given(st.from_regex(r"\Ahttps?://[^/?#]{1,20}(/[^?#]{0,20}){0,3}(\?[^#]{0,9})?\Z") | st.text(max_size=40))
def test_a_base_url_that_is_read_is_read_again_as_itself(text: str) -> None:
    try:
        read = lancelot.parse_base_url(text)
    except ValueError as error:
        assert str(error) == ADDRESS  # noqa: PT017 - whether it is raised depends on the text
        return
    assert lancelot.parse_base_url(read) == read
    assert lancelot.host_of(read)


# --- storing


def stored(config_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((config_dir / "settings.json").read_text(encoding="utf-8"))
    return values


def test_what_is_stored_is_what_is_loaded(make_settings: Make, config_dir: Path) -> None:
    path = lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/data/日本 db", "LANCEDB_TABLE": "my notes"})
    assert path == config_dir / "settings.json"
    settings = make_settings()
    assert (settings.path, settings.table, settings.problems) == ("/data/日本 db", "my notes", ())
    assert settings.origins["LANCEDB_TABLE"] == "settings file"


def test_storing_merges_and_a_blank_takes_a_name_out(config_dir: Path) -> None:
    lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/a", "LANCEDB_TABLE": "t", "EMBEDDING_MODEL": "m"})
    lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/b", "EMBEDDING_MODEL": "", "OPENAI_BASE_URL": ""})
    assert stored(config_dir) == {"LANCEDB_PATH": "/b", "LANCEDB_TABLE": "t"}


def test_storing_over_a_broken_file_writes_a_good_one(config_dir: Path) -> None:
    write_file(config_dir, "not json")
    lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/a"})
    assert stored(config_dir) == {"LANCEDB_PATH": "/a"}


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "LANCELOT_PASSPHRASE"])
def test_a_secret_is_never_stored_among_the_settings(name: str, config_dir: Path) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/a", name: "sk-very-secret"})
    assert "sk-very-secret" not in str(refusal.value)
    assert not config_dir.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_reads_what_is_stored(config_dir: Path) -> None:
    before = os.umask(0)
    try:
        path = lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/a"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(config_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    failing: str, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/old"})
    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space left"):
            lancelot.store_settings(config_dir, {"LANCEDB_PATH": "/new"})
    assert stored(config_dir) == {"LANCEDB_PATH": "/old"}
    assert [path.name for path in config_dir.iterdir()] == ["settings.json"]


def test_the_configuration_folder_is_not_made_by_reading(make_settings: Make, config_dir: Path) -> None:
    make_settings(LANCEDB_TABLE="x")
    assert lancelot.config_folder() == config_dir
    assert not config_dir.exists()
