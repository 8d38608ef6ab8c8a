"""Where the API key is kept and found: the environment, the system keychain, the encrypted file."""

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keyring
import keyring.backends.fail
import keyring.backends.null
import pytest
from conftest import DATABASES, PROJECT, child_environment
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelot
import lancelot_setup

Make = Callable[..., lancelot.Settings]

OPENAI = "api.openai.com"
KEY = "sk-test-0123456789-abcdef"
PASSPHRASE = "correct horse"  # noqa: S105 - of tests alone
LIMIT = 60
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")


@dataclass
class Ring:
    """A keychain in memory, with a fault where one is given."""

    fault: Callable[[], Any] = lambda: None
    priority: float = 5
    held: dict[tuple[str, str], str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def get_password(self, service: str, name: str) -> str | None:
        self.calls.append("get")
        self.fault()
        return self.held.get((service, name))

    def set_password(self, service: str, name: str, password: str) -> None:
        self.calls.append("set")
        self.fault()
        self.held[service, name] = password

    def delete_password(self, service: str, name: str) -> None:
        self.calls.append("delete")
        self.fault()
        del self.held[service, name]


@pytest.fixture(autouse=True)
def use_ring(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Sets the machine's keychain; at first there is none."""

    def use(ring: Any) -> Any:
        monkeypatch.setattr(keyring, "get_keyring", lambda: ring)
        return ring

    use(keyring.backends.fail.Keyring())
    return use


@pytest.fixture(autouse=True)
def quick_scrypt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any work, save where a test looks at the real one."""
    if "real_work" not in request.node.name:
        monkeypatch.setattr(lancelot, "_SCRYPT", {"n": 2**8, "r": 8, "p": 1})


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def entries_of(config_dir: Path) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((config_dir / "credentials.json").read_text(encoding="utf-8"))
    return entries


# --- the order of the places


def test_the_environment_comes_first_and_the_keychain_is_not_asked(make_settings: Make, use_ring: Any) -> None:
    ring = use_ring(Ring(held={("lancelot", OPENAI): "sk-ring"}))
    lookup = lancelot.find_key(make_settings(OPENAI_API_KEY=KEY))
    assert (lookup.key, lookup.place, lookup.reasons) == (KEY, "environment", ())
    assert ring.calls == []


def test_the_keychain_comes_before_the_encrypted_file(make_settings: Make, use_ring: Any) -> None:
    settings = make_settings()
    lancelot.file_write(settings, OPENAI, "sk-file")
    ring = use_ring(Ring(held={("lancelot", OPENAI): "sk-ring"}))
    assert lancelot.find_key(settings) == lancelot.KeyLookup("sk-ring", "system keychain")
    ring.held.clear()
    assert lancelot.find_key(settings) == lancelot.KeyLookup("sk-file", "encrypted file")


def test_no_key_anywhere_is_no_key_and_no_file_is_made(make_settings: Make, use_ring: Any, config_dir: Path) -> None:
    use_ring(Ring())
    assert lancelot.find_key(make_settings()) == lancelot.KeyLookup(None)
    assert not config_dir.exists()


def test_a_key_is_looked_for_under_scheme_and_host_of_the_server_in_use(make_settings: Make, use_ring: Any) -> None:
    held = {OPENAI: "sk-openai", "http://localhost:11434": "sk-local"}
    use_ring(Ring(held={("lancelot", name): key for name, key in held.items()}))
    for url, key in (
        ("https://api.openai.com/v1", "sk-openai"),
        ("http://api.openai.com/v1", None),
        ("https://localhost:11434/v1", None),
        ("http://localhost:11434/v1", "sk-local"),
        ("http://user:pw@LOCALHOST:11434", "sk-local"),
        ("http://localhost:11435/v1", None),
        ("https://evil.example/v1", None),
        ("https://api.openai.com.evil.example", None),
        ("https://api.openai.com@evil.example", None),
        ("", "sk-openai"),
    ):
        assert lancelot.find_key(make_settings(OPENAI_BASE_URL=url)).key == key, url


def test_a_lookup_does_not_print_its_key(make_settings: Make) -> None:
    assert KEY not in repr(lancelot.find_key(make_settings(OPENAI_API_KEY=KEY)))


# --- saving


def test_a_key_goes_to_the_keychain_and_its_copy_in_the_file_goes_away(
    make_settings: Make, use_ring: Any, config_dir: Path
) -> None:
    settings = make_settings()
    lancelot.file_write(settings, OPENAI, "sk-old")
    lancelot.file_write(settings, "other:1", "sk-other")
    ring = use_ring(Ring())
    assert lancelot.save_key(settings, OPENAI, KEY, interactive=False) == ("system keychain", None)
    assert ring.held == {("lancelot", OPENAI): KEY}
    assert list(entries_of(config_dir)) == ["other:1"]


def test_without_a_keychain_a_key_goes_to_the_encrypted_file_and_that_is_told(make_settings: Make) -> None:
    settings = make_settings()
    place, why = lancelot.save_key(settings, OPENAI, KEY, interactive=False)
    assert (place, why) == ("encrypted file", "This machine offers no system keychain.")
    lookup = lancelot.find_key(settings)
    assert (lookup.key, lookup.place) == (KEY, "encrypted file")


def test_forgetting_removes_the_keys_and_says_which(make_settings: Make, use_ring: Any, config_dir: Path) -> None:
    settings = make_settings()
    lancelot.file_write(settings, "other:1", "sk-other")
    ring = use_ring(Ring(held={("lancelot", OPENAI): KEY, ("mail", OPENAI): "not ours"}))
    removed, reasons = lancelot.forget_keys(settings, [OPENAI, "other:1", OPENAI], interactive=False)
    assert ring.held == {("mail", OPENAI): "not ours"}
    assert list(config_dir.iterdir()) == []
    assert removed == [
        f"the key for {OPENAI} in the system keychain",
        str(config_dir / "credentials.json"),
        str(config_dir / "credentials.key"),
    ]
    assert reasons == []
    assert lancelot.forget_keys(settings, [OPENAI], interactive=False) == ([], [])


# --- the encrypted file


def test_the_encrypted_file_opens_with_its_key_file(make_settings: Make, config_dir: Path) -> None:
    settings = make_settings()
    lancelot.file_write(settings, OPENAI, KEY)
    lancelot.file_write(settings, "localhost:1", "sk-two")
    assert lancelot.file_read(settings, OPENAI) == KEY
    assert lancelot.file_read(settings, "localhost:1") == "sk-two"
    assert lancelot.file_read(settings, "localhost:2") is None
    assert lancelot.stored_hosts(config_dir) == [OPENAI, "localhost:1"]
    assert len((config_dir / "credentials.key").read_bytes()) == 32


def test_the_encrypted_file_opens_with_its_passphrase_alone(make_settings: Make, config_dir: Path) -> None:
    settings = make_settings(LANCELOT_PASSPHRASE=PASSPHRASE)
    lancelot.file_write(settings, OPENAI, KEY)
    assert lancelot.find_key(settings) == lancelot.KeyLookup(KEY, "encrypted file")
    assert [path.name for path in config_dir.iterdir()] == ["credentials.json"]
    assert entries_of(config_dir)[OPENAI]["kdf"] == "scrypt"


def test_the_passphrase_is_stretched_with_real_work(make_settings: Make) -> None:
    settings = make_settings(LANCELOT_PASSPHRASE=PASSPHRASE)
    assert lancelot._SCRYPT["n"] * lancelot._SCRYPT["r"] * 128 >= 2**26  # noqa: SLF001 - 64 MiB, and no test needs it public
    lancelot.file_write(settings, OPENAI, KEY)
    assert lancelot.file_read(settings, OPENAI) == KEY


def test_neither_key_nor_passphrase_is_in_any_file(make_settings: Make, config_dir: Path) -> None:
    for variables in ({}, {"LANCELOT_PASSPHRASE": PASSPHRASE}):
        lancelot.file_write(make_settings(**variables), OPENAI, KEY)
        written = everything_in(config_dir)
        for secret in (KEY.encode(), base64.b64encode(KEY.encode())[:-2], b"0123456789", PASSPHRASE.encode()):
            assert secret not in written


@posix
def test_only_the_owner_reads_the_encrypted_file_and_its_key(make_settings: Make, config_dir: Path) -> None:
    before = os.umask(0)
    try:
        lancelot.file_write(make_settings(), OPENAI, KEY)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in config_dir.iterdir()}
    assert modes == {"credentials.json": 0o600, "credentials.key": 0o600}
    assert stat.S_IMODE(config_dir.stat().st_mode) == 0o700


def test_the_same_key_is_sealed_differently_every_time(make_settings: Make, config_dir: Path) -> None:
    sealed = set()
    for _ in range(3):
        lancelot.file_write(make_settings(), OPENAI, KEY)
        sealed |= {(entry["salt"], entry["token"]) for entry in entries_of(config_dir).values()}
    assert len({part for entry in sealed for part in entry}) == 6


def seal_as_before(settings: lancelot.Settings, host: str, key: str) -> None:
    """Seals a key as the versions before Fernet did: AES-256-GCM, the host as associated data."""
    salt, nonce = os.urandom(16), os.urandom(12)
    sealing_key = lancelot._sealing_key(settings, salt, create=True)  # noqa: SLF001 - the secret is the same
    sealed = AESGCM(sealing_key).encrypt(nonce, key.encode(), host.encode())
    parts = {"salt": salt, "nonce": nonce, "key": sealed}
    entry = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    entry["kdf"] = "scrypt" if settings.passphrase else "key file"
    (settings.config_dir).mkdir(parents=True, exist_ok=True)
    (settings.config_dir / "credentials.json").write_text(json.dumps({host: entry}), encoding="utf-8")


SEALS = [lancelot.file_write, seal_as_before]


@pytest.mark.parametrize("variables", [{}, {"LANCELOT_PASSPHRASE": PASSPHRASE}])
def test_a_file_of_a_version_before_is_read_and_written_on(
    variables: dict[str, str], make_settings: Make, config_dir: Path
) -> None:
    settings = make_settings(**variables)
    seal_as_before(settings, OPENAI, KEY)
    assert lancelot.find_key(settings) == lancelot.KeyLookup(KEY, "encrypted file")
    lancelot.file_write(settings, "localhost:1", "sk-two")
    assert [lancelot.file_read(settings, host) for host in (OPENAI, "localhost:1")] == [KEY, "sk-two"]
    assert ["token" in entry for entry in entries_of(config_dir).values()] == [False, True]


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("variables", [{}, {"LANCELOT_PASSPHRASE": PASSPHRASE}])
def test_an_entry_moved_to_another_host_does_not_open(
    seal: Callable[..., None], variables: dict[str, str], make_settings: Make, config_dir: Path
) -> None:
    settings = make_settings(**variables)
    seal(settings, OPENAI, KEY)
    moved = {"evil.example": entries_of(config_dir)[OPENAI]}
    (config_dir / "credentials.json").write_text(json.dumps(moved), encoding="utf-8")
    with pytest.raises(lancelot.LancelotError, match="does not open"):
        lancelot.file_read(settings, "evil.example")
    evil = make_settings(OPENAI_BASE_URL="https://evil.example/v1", **variables)
    assert lancelot.find_key(evil).key is None


def refusal(settings: lancelot.Settings) -> str:
    """Why the encrypted file gives no key, as the status tells it."""
    lookup = lancelot.find_key(settings)
    assert lookup.key is None
    assert str(lookup.reasons[0]) == "This machine offers no system keychain."
    (_, reason) = map(str, lookup.reasons)
    return reason


def test_a_wrong_passphrase_does_not_open_it(make_settings: Make) -> None:
    lancelot.file_write(make_settings(LANCELOT_PASSPHRASE=PASSPHRASE), OPENAI, KEY)
    reason = refusal(make_settings(LANCELOT_PASSPHRASE=PASSPHRASE.upper()))
    assert "does not open with this passphrase" in reason
    assert "Run `init` again" in reason
    assert PASSPHRASE.upper() not in reason


def test_a_passphrase_that_is_not_given_is_asked_for(make_settings: Make) -> None:
    lancelot.file_write(make_settings(LANCELOT_PASSPHRASE=PASSPHRASE), OPENAI, KEY)
    assert "Set LANCELOT_PASSPHRASE" in refusal(make_settings())


def test_a_passphrase_for_what_was_sealed_without_is_told(make_settings: Make) -> None:
    lancelot.file_write(make_settings(), OPENAI, KEY)
    assert "Unset LANCELOT_PASSPHRASE" in refusal(make_settings(LANCELOT_PASSPHRASE=PASSPHRASE))


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"api.openai.com": ', b"\xff\xfe", b'"text"'])
def test_a_damaged_file_is_told_and_written_anew(content: bytes, make_settings: Make, config_dir: Path) -> None:
    config_dir.mkdir(parents=True)
    (config_dir / "credentials.json").write_bytes(content)
    settings = make_settings()
    assert str(config_dir / "credentials.json") in refusal(settings)
    assert lancelot.stored_hosts(config_dir) == []
    lancelot.file_write(settings, OPENAI, KEY)
    assert lancelot.file_read(settings, OPENAI) == KEY


@pytest.mark.parametrize(
    ("seal", "change"),
    [
        (lancelot.file_write, {"token": None}),
        (lancelot.file_write, {"token": 5}),
        (lancelot.file_write, {"token": ""}),
        (lancelot.file_write, {"token": "äö"}),
        (lancelot.file_write, {"token": "gAAAAA"}),
        (lancelot.file_write, {"salt": []}),
        (lancelot.file_write, {"salt": None}),
        (lancelot.file_write, {"kdf": None}),
        (lancelot.file_write, {"kdf": "scrypt"}),
        (seal_as_before, {"key": None}),
        (seal_as_before, {"key": 5}),
        (seal_as_before, {"key": ""}),
        (seal_as_before, {"key": "äö"}),
        (seal_as_before, {"key": "AAAA"}),
        (seal_as_before, {"nonce": ""}),
        (seal_as_before, {"nonce": "AAAA"}),
        (seal_as_before, {"nonce": "A" * 400}),
        (seal_as_before, {"salt": []}),
        (seal_as_before, {"kdf": None}),
        (seal_as_before, {"kdf": "scrypt"}),
    ],
)
def test_a_damaged_entry_is_told(
    seal: Callable[..., None], change: dict[str, Any], make_settings: Make, config_dir: Path
) -> None:
    settings = make_settings()
    seal(settings, OPENAI, KEY)
    entry = entries_of(config_dir)[OPENAI] | change
    entry = {name: value for name, value in entry.items() if value is not None}
    (config_dir / "credentials.json").write_text(json.dumps({OPENAI: entry}), encoding="utf-8")
    if change == {"kdf": None}:
        assert lancelot.file_read(settings, OPENAI) == KEY
    else:
        assert "init` again" in refusal(settings)


@pytest.mark.parametrize("entry", ["text", 5, [], [1, 2], True, {}])
def test_an_entry_that_is_no_object_is_told(entry: object, make_settings: Make, config_dir: Path) -> None:
    lancelot.file_write(make_settings(), OPENAI, KEY)
    (config_dir / "credentials.json").write_text(json.dumps({OPENAI: entry}), encoding="utf-8")
    assert "does not open" in refusal(make_settings())


@pytest.mark.parametrize("damaged", [b"", b"short", bytes(16), bytes(32), bytes(33)])
def test_a_damaged_key_file_is_told_and_made_anew(damaged: bytes, make_settings: Make, config_dir: Path) -> None:
    settings = make_settings()
    lancelot.file_write(settings, OPENAI, KEY)
    (config_dir / "credentials.key").write_bytes(damaged)
    assert "does not open" in refusal(settings)
    lancelot.file_write(settings, OPENAI, KEY)
    assert lancelot.file_read(settings, OPENAI) == KEY
    assert len((config_dir / "credentials.key").read_bytes()) == 32


def test_a_missing_key_file_is_told_and_not_made_by_reading(make_settings: Make, config_dir: Path) -> None:
    settings = make_settings()
    lancelot.file_write(settings, OPENAI, KEY)
    (config_dir / "credentials.key").unlink()
    reason = refusal(settings)
    assert "credentials.key cannot be read (No such file" in reason
    assert not (config_dir / "credentials.key").exists()


def test_a_file_that_may_not_be_read_is_told(make_settings: Make, config_dir: Path) -> None:
    (config_dir / "credentials.json").mkdir(parents=True)
    assert "credentials.json is no file" in refusal(make_settings())


@settings(max_examples=40)
@given(key=st.text(min_size=1, max_size=300), host=st.text(max_size=40), passphrase=st.text(max_size=20))
def test_any_key_comes_out_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, key: str, host: str, passphrase: str
) -> None:
    config_dir = tmp_path_factory.getbasetemp() / "any-key"
    here = lancelot.load_settings({"LANCELOT_PASSPHRASE": passphrase}, config_dir)
    lancelot.file_write(here, host, key)
    assert lancelot.file_read(here, host) == key


# --- keychains that misbehave


def test_a_keychain_that_hangs_is_left_after_its_time(
    make_settings: Make, use_ring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lancelot.KEYCHAIN_SECONDS <= 3
    monkeypatch.setattr(lancelot, "KEYCHAIN_SECONDS", 0.2)
    release = threading.Event()
    use_ring(Ring(fault=lambda: release.wait(LIMIT)))
    begun = time.monotonic()
    lookup = lancelot.find_key(make_settings())
    took = time.monotonic() - begun
    release.set()
    assert took < 5
    assert lookup.key is None
    assert [(str(reason), reason.kind) for reason in lookup.reasons] == [
        ("The system keychain did not answer within 0.2 s.", "no-answer")
    ]


def test_a_keychain_that_hangs_is_left_while_it_is_looked_for(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lancelot, "KEYCHAIN_SECONDS", 0.2)
    release = threading.Event()
    monkeypatch.setattr(keyring, "get_keyring", lambda: release.wait(LIMIT))
    lookup = lancelot.find_key(make_settings())
    release.set()
    assert "did not answer within" in str(lookup.reasons[0])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("bus is\ngone"), "bus is gone"),
        (keyring.errors.KeyringLocked("locked away"), "locked away"),
        (keyring.errors.NoKeyringError(""), "NoKeyringError"),
        (OSError(111, "Connection refused"), "Connection refused"),
        (ValueError(), "ValueError"),
        (ImportError("no dbus"), "no dbus"),
    ],
)
def test_a_keychain_that_fails_is_told_and_the_file_is_asked(
    error: Exception, words: str, make_settings: Make, use_ring: Any
) -> None:
    def fail() -> None:
        raise error

    use_ring(Ring(fault=fail))
    settings = make_settings()
    assert [str(reason) for reason in lancelot.find_key(settings).reasons] == [
        f"The system keychain cannot be used ({words})."
    ]
    place, why = lancelot.save_key(settings, OPENAI, KEY, interactive=False)
    assert (place, why) == ("encrypted file", f"The system keychain cannot be used ({words}).")
    assert lancelot.find_key(settings).key == KEY
    assert lancelot.forget_keys(settings, [OPENAI], interactive=False)[1] == [why]


@pytest.mark.parametrize(
    "ring", [keyring.backends.null.Keyring(), keyring.backends.fail.Keyring(), Ring(priority=0), object()]
)
def test_a_machine_without_keychain_is_told_and_the_file_used(ring: object, make_settings: Make, use_ring: Any) -> None:
    use_ring(ring)
    settings = make_settings()
    assert [str(reason) for reason in lancelot.find_key(settings).reasons] == [
        "This machine offers no system keychain."
    ]
    assert lancelot.save_key(settings, OPENAI, KEY, interactive=True)[0] == "encrypted file"


# --- a keychain that would prompt


class SecretServiceRing(Ring):
    """Known as the Secret Service by the module that its class says it is of."""

    __module__ = "keyring.backends.SecretService"


class NoSuchItemError(Exception):
    """What secretstorage raises for a collection that is not there."""


@pytest.fixture
def secret_service(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A secretstorage whose default collection is locked, unlocked or missing."""

    def use(locked: Any) -> None:
        def collection(_bus: Any) -> Any:
            if locked is None:
                raise NoSuchItemError
            return SimpleNamespace(is_locked=lambda: locked)

        fake = SimpleNamespace(
            dbus_init=lambda: SimpleNamespace(close=lambda: None),
            Collection=collection,
            ItemNotFoundException=NoSuchItemError,
        )
        monkeypatch.setitem(sys.modules, "secretstorage", fake)

    return use


@pytest.mark.parametrize(("locked", "words"), [(True, "is locked"), (None, "is still empty")])
def test_a_keychain_that_would_prompt_is_not_touched(
    locked: Any, words: str, make_settings: Make, use_ring: Any, secret_service: Any
) -> None:
    ring = SecretServiceRing(held={("lancelot", OPENAI): KEY})
    secret_service(locked)
    settings = make_settings()
    for keychain in (ring, SimpleNamespace(priority=10, backends=[Ring(), ring])):
        use_ring(keychain)
        with pytest.raises(lancelot.LancelotError, match=words):
            lancelot.keychain_read(OPENAI)
        assert lancelot.save_key(settings, OPENAI, KEY, interactive=False)[0] == "encrypted file"
    assert ring.calls == []


def test_an_unlocked_keychain_is_used(make_settings: Make, use_ring: Any, secret_service: Any) -> None:
    use_ring(SecretServiceRing(held={("lancelot", OPENAI): KEY}))
    secret_service(locked=False)
    assert lancelot.find_key(make_settings()).place == "system keychain"


def test_a_person_at_a_terminal_may_be_prompted(make_settings: Make, use_ring: Any, secret_service: Any) -> None:
    ring = use_ring(SecretServiceRing())
    secret_service(locked=True)
    assert lancelot.save_key(make_settings(), OPENAI, KEY, interactive=True) == ("system keychain", None)
    assert ring.calls == ["set"]


# --- keys that cannot be sent


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-\x00", "sk-ä", "sk-\u200b"])
def test_a_key_that_no_server_can_be_given_is_told_and_not_shown(
    key: str, make_searcher: Callable[..., lancelot.Searcher], embedding_server: Callable[..., str]
) -> None:
    searcher = make_searcher(OPENAI_API_KEY=key, OPENAI_BASE_URL=embedding_server())
    (check,) = lancelot_setup.check_embeddings(searcher.status())
    assert (check.status, check.refused) == ("failed", True)
    assert "not one line of ASCII" in check.message
    assert "sk-" not in check.message + check.remedy


# --- what the status says


def test_the_status_says_where_the_key_came_from_and_never_the_key(
    make_settings: Make, use_ring: Any, folder_copy: Callable[[str], Path]
) -> None:
    folder = folder_copy("no-vector")
    from_environment = make_settings(LANCEDB_PATH=folder, OPENAI_API_KEY=KEY)
    use_ring(Ring(held={("lancelot", OPENAI): KEY}))
    without = make_settings(LANCEDB_PATH=folder)
    assert_place(from_environment, "from the environment")
    assert_place(without, "from the system keychain")
    lancelot.file_write(without, OPENAI, KEY)
    use_ring(Ring())
    assert_place(without, "from the encrypted file")
    lancelot.forget_keys(without, [], interactive=False)
    assert_place(without, "none")


def assert_place(settings: lancelot.Settings, place: str) -> None:
    status = lancelot.Searcher(settings).status()
    text, lines = lancelot.status_json(status, verbose=True), lancelot.status_lines(status)
    assert json.loads(text)["embeddings"]["key"] == place
    assert f"key: {place}" in lines
    assert KEY not in text + lines


def test_the_status_says_why_the_keychain_gave_no_key(
    make_settings: Make, use_ring: Any, secret_service: Any, folder_copy: Callable[[str], Path]
) -> None:
    use_ring(SecretServiceRing())
    secret_service(locked=True)
    status = lancelot.Searcher(make_settings(LANCEDB_PATH=folder_copy("no-vector"))).status()
    assert "keychain is locked" in json.loads(lancelot.status_json(status, verbose=False))["embeddings"]["keychain"]
    assert "keychain:    The system keychain is locked" in lancelot.show_styles(lancelot.status_lines(status))


# --- a real Secret Service


NEEDED = ("gnome-keyring-daemon", "dbus-run-session", "dbus-monitor")
MISSING = [program for program in NEEDED if shutil.which(program) is None]
needs_secret_service = pytest.mark.skipif(
    bool(MISSING) or os.name == "nt", reason=f"not installed: {', '.join(MISSING)} (packages gnome-keyring and dbus)"
)


@dataclass
class SecretService:
    """A session with a keychain of its own, for child processes."""

    environment: dict[str, str]
    monitor: subprocess.Popen[str]

    def lancelot(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return self.python(str(PROJECT / "lancelot.py"), *words, given=given)

    def python(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )

    def prompts(self) -> list[str]:
        """The calls so far that would have opened a prompt; the monitor ends."""
        self.monitor.terminate()
        seen, _ = self.monitor.communicate(timeout=LIMIT)
        return [line for line in seen.splitlines() if line.startswith("method call")]


@pytest.fixture
def start_secret_service(machine: Path) -> Iterator[Callable[..., SecretService]]:
    """Starts a bus and gnome-keyring in it: unlocked with a password, or as on a new machine."""
    # Sockets have short paths.
    runtime = Path(tempfile.mkdtemp(prefix="lk-"))
    running: list[subprocess.Popen[str]] = []

    def spawn(*command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        running.append(process)
        return process

    def start(*, unlocked: bool) -> SecretService:
        environment = child_environment(XDG_RUNTIME_DIR=str(runtime), XDG_DATA_HOME=str(machine / ".local"))
        told = 'printf "%s\\n" "$DBUS_SESSION_BUS_ADDRESS"; exec cat'
        bus = spawn("dbus-run-session", "--", "sh", "-c", told, environment=environment)
        assert bus.stdout is not None
        environment["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().strip()
        unlock = ["--unlock"] if unlocked else []
        daemon = spawn("gnome-keyring-daemon", "--foreground", "--components=secrets", *unlock, environment=environment)
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdin.write("pw" if unlocked else "")
        daemon.stdin.close()
        daemon.stdout.readline()
        calls = [f"type='method_call',member='{member}'" for member in ("Prompt", "BeginPrompting")]
        monitor = spawn("dbus-monitor", "--session", *calls, environment=environment)
        assert monitor.stdout is not None
        monitor.stdout.readline()
        return SecretService(environment, monitor)

    yield start
    for process in reversed(running):
        process.kill() if process.args[0] == "dbus-monitor" else process.terminate()
        for stream in (process.stdin, process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        process.wait(timeout=LIMIT)
    shutil.rmtree(runtime)


@needs_secret_service
def test_the_system_keychain_holds_the_key_from_init_to_forget(
    start_secret_service: Callable[..., SecretService], embedding_server: Callable[..., str], config_dir: Path
) -> None:
    service = start_secret_service(unlocked=True)
    url = embedding_server("--require-key", KEY)
    setup = service.lancelot(
        "init",
        "--path",
        str(DATABASES / "anythingllm"),
        "--base-url",
        url,
        "--api-key-stdin",
        "--yes",
        given=f"{KEY}\n",
    )
    assert setup.returncode == 0, setup.stderr
    assert "stored in the system keychain." in setup.stdout
    assert [path.name for path in config_dir.iterdir()] == ["settings.json"]

    assert "from the system keychain" in service.lancelot("init", "--show").stdout
    found = service.lancelot("search", "hästarna stallet", "--table", "world-notes", "--type", "vector", "--json")
    assert json.loads(found.stdout)["searchType"] == "vector", found.stdout
    status = service.lancelot("status")
    assert "key: from the system keychain" in status.stdout

    forgotten = service.lancelot("init", "--forget")
    assert "in the system keychain" in forgotten.stdout
    assert list(config_dir.iterdir()) == []
    assert "from the system keychain" not in service.lancelot("init", "--show").stdout
    everything = "".join(run.stdout + run.stderr for run in (setup, found, status, forgotten))
    assert KEY not in everything
    assert service.prompts() == []


@needs_secret_service
def test_the_system_keychain_is_found_by_a_server_that_a_client_gave_no_variables(
    start_secret_service: Callable[..., SecretService],
) -> None:
    service = start_secret_service(unlocked=True)
    words = ("init", "--path", str(DATABASES / "anythingllm"), "--base-url", "http://127.0.0.1:1", "--api-key-stdin")
    assert "stored in the system keychain." in service.lancelot(*words, "--yes", given=f"{KEY}\n").stdout
    address = service.environment.pop("DBUS_SESSION_BUS_ADDRESS")
    assert "from the system keychain" not in service.lancelot("init", "--show").stdout
    socket = address.removeprefix("unix:path=").partition(",")[0]
    Path(service.environment["XDG_RUNTIME_DIR"], "bus").symlink_to(socket)
    assert "Key for 127.0.0.1:1: from the system keychain" in service.lancelot("init", "--show").stdout


@needs_secret_service
def test_a_locked_system_keychain_is_told_in_time_and_never_prompts(
    start_secret_service: Callable[..., SecretService], config_dir: Path
) -> None:
    service = start_secret_service(unlocked=True)
    lock = "import secretstorage as s; c = s.Collection(s.dbus_init()); c.lock(); print(c.is_locked())"
    assert service.python("-c", lock).stdout.strip() == "True"
    begun = time.monotonic()
    without_folder = json.loads(service.lancelot("status", "--json").stdout)
    assert time.monotonic() - begun < 5
    assert "is locked" in without_folder["embeddings"]["keychain"]

    answer = json.loads(service.lancelot("status", "--path", str(DATABASES / "no-vector"), "--json").stdout)
    assert "is locked" in answer["embeddings"]["keychain"]
    assert answer["embeddings"]["available"] is False
    assert [table["searchTypes"] for table in answer["tables"]] == [["fts", "text", "auto"]]

    forgotten = service.lancelot("init", "--forget")
    assert "is locked" in forgotten.stdout
    assert not config_dir.exists()
    assert service.prompts() == []


@needs_secret_service
def test_a_system_keychain_that_was_never_used_gives_no_key_and_no_prompt(
    start_secret_service: Callable[..., SecretService],
) -> None:
    service = start_secret_service(unlocked=False)
    shown = service.lancelot("init", "--show")
    assert "Key for api.openai.com: none" in shown.stdout
    assert "still empty" in shown.stdout
    assert service.prompts() == []
