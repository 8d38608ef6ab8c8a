"""Whether an endpoint really embeds, and whether its vectors fit the tables: one line for each."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import DATABASES

import lancelot

FOLDER = str(DATABASES / "anythingllm")


@pytest.fixture
def check(make_settings: Callable[..., lancelot.Settings]) -> Callable[..., list[lancelot.Check]]:
    """The checks over a folder with these settings, a key given or not."""

    def run(folder: str = FOLDER, *, key: str | None = None, **variables: str) -> list[lancelot.Check]:
        settings = make_settings(LANCEDB_PATH=folder, **variables)
        embedder = lancelot.Embedder(settings, key=lambda _: lancelot.KeyLookup(key))
        searcher = lancelot.Searcher(settings, embedder=embedder)
        layouts: Sequence[lancelot.TableLayout] = searcher.store.layouts()[0]
        return lancelot.check_embeddings(searcher, layouts)

    return run


Check = Callable[..., list[lancelot.Check]]


def test_without_key_and_endpoint_it_is_well_and_nothing_leaves_the_machine(check: Check) -> None:
    (line,) = check()
    assert line == lancelot.Check(
        well=True, line="No key and no endpoint: searches are text only, and nothing leaves this machine."
    )


def test_an_endpoint_that_fits_every_table_is_one_good_line(check: Check, embedding_server: Callable[..., str]) -> None:
    url = embedding_server("--require-key", "sk-right")
    (line,) = check(OPENAI_BASE_URL=url, EMBEDDING_MODEL="tiny", key="sk-right")
    assert line == lancelot.Check(well=True, line=f"{lancelot.host_of(url)} embeds with tiny: length 384.")


def test_every_table_of_another_length_has_its_line_with_fitting_models(
    check: Check, embedding_server: Callable[..., str]
) -> None:
    good, *bad = check(OPENAI_BASE_URL=embedding_server("--dimensions", "768"))
    assert good.well
    assert "length 768" in good.line
    assert [(line.well, line.line.split(":")[0]) for line in bad] == [
        (False, "The vectors of python-peps have length 384, not 768"),
        (False, "The vectors of world-notes have length 384, not 768"),
    ]
    assert all("all-MiniLM-L6-v2" in line.line for line in bad)


def test_a_table_without_vectors_needs_no_line(check: Check, embedding_server: Callable[..., str]) -> None:
    assert [line.well for line in check(str(DATABASES / "no-vector"), OPENAI_BASE_URL=embedding_server())] == [True]


def test_a_table_with_one_vector_column_that_fits_is_well(
    check: Check, embedding_server: Callable[..., str], make_table: Callable[..., Any]
) -> None:
    import pyarrow as pa

    columns = {
        "text": ["a"],
        "small": pa.array([[1.0] * 384], pa.list_(pa.float32(), 384)),
        "large": pa.array([[1.0] * 768], pa.list_(pa.float32(), 768)),
    }
    folder = str(make_table(columns))
    assert [line.well for line in check(folder, OPENAI_BASE_URL=embedding_server())] == [True]
    _, bad = check(folder, OPENAI_BASE_URL=embedding_server("--dimensions", "8"))
    assert "have length 384, 768, not 8" in bad.line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--require-key", "sk-right"), "refused the API key (HTTP 401)"),
        (("--fail-with", "403"), "HTTP 403"),
        (("--fail-with", "404"), "check EMBEDDING_MODEL and OPENAI_BASE_URL"),
        (("--fail-with", "429"), "quota"),
        (("--fail-with", "503"), "failed with HTTP 503"),
        (("--delay", "5"), "did not answer within 0.3 s"),
    ],
)
def test_an_endpoint_that_fails_is_one_bad_line_without_the_key(
    options: tuple[str, ...], said: str, check: Check, embedding_server: Callable[..., str]
) -> None:
    url = embedding_server(*options)
    limit = "0.3" if "--delay" in options else "15"
    (line,) = check(OPENAI_BASE_URL=url, LANCELOT_EMBEDDING_TIMEOUT=limit, key="sk-wrong-one")
    assert not line.well
    assert line.line.startswith(f"The embedding server at {lancelot.host_of(url)} ")
    assert said in line.line
    assert "sk-wrong-one" not in line.line


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://\uff11\uff12\uff17.0.0.1",
        "http://[v1.x]",
        "http://a..b",
        "http://user:pw@127.0.0.1:1",
    ],
)
def test_an_endpoint_that_is_not_there_is_one_bad_line(url: str, check: Check) -> None:
    (line,) = check(OPENAI_BASE_URL=url)
    assert not line.well
    assert "cannot be" in line.line
    assert "pw" not in line.line
