"""Documents as resources: listed, completed and read by their addresses, as a client sees them."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, types
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from wire import DOCUMENT_NAMES as NAMES

import lancelot

SECONDS = 60
MakeSettings = Callable[..., lancelot.Settings]
MakeTable = Callable[..., Path]
Read = Callable[[Client], Awaitable[Any]]


def session(settings: lancelot.Settings, use: Read, *, mode: str = "auto") -> Any:
    async def run() -> Any:
        with anyio.fail_after(SECONDS):
            async with Client(lancelot.build_server(settings), mode=mode) as client:
                return await use(client)

    return anyio.run(run)


async def every_page(client: Client) -> list[types.ListResourcesResult]:
    pages = [await client.list_resources()]
    while cursor := pages[-1].next_cursor:
        pages.append(await client.list_resources(cursor=cursor))
    return pages


async def text_at(client: Client, address: str) -> str:
    (content,) = (await client.read_resource(address)).contents
    assert isinstance(content, types.TextResourceContents)
    assert content.uri == address
    return content.text


def error_of(settings: lancelot.Settings, use: Read, *, mode: str = "auto") -> types.ErrorData:
    """The error of a request, after which the session goes on."""

    async def fail(client: Client) -> types.ErrorData:
        with pytest.raises(MCPError) as caught:
            await use(client)
        assert (await client.list_tools()).tools
        return caught.value.error

    return session(settings, fail, mode=mode)


def error_at(settings: lancelot.Settings, address: str, *, mode: str = "auto") -> types.ErrorData:
    return error_of(settings, lambda client: client.read_resource(address), mode=mode)


def documents(*names: str) -> dict[str, list[str]]:
    """The columns of a table with two chunks of each of these documents, which lie apart in it."""
    chunks = [(name, f"{part} of {name}") for part in ("start", "end") for name in names]
    return {"source": [name for name, _ in chunks], "text": [text for _, text in chunks]}


# Addresses


def test_every_document_is_listed_once_by_the_name_that_reads_it(
    make_table: MakeTable, make_settings: MakeSettings
) -> None:
    settings = make_settings(LANCEDB_PATH=make_table(documents(*NAMES)))

    async def use(client: Client) -> None:
        listed = (await client.list_resources()).resources
        assert len({resource.uri for resource in listed}) == len(NAMES)
        for name, resource in zip(NAMES, listed, strict=True):
            assert await text_at(client, resource.uri) == f"start of {name}\n\nend of {name}"
            assert resource.mime_type == ("text/markdown" if name.endswith(".md") else "text/plain")
            assert resource.name in name
            assert resource.description == f"2 chunks in documents: {name}"
        # As a client fills in the template, as one writes that encodes nothing, and as one that encodes all.
        (template,) = (await client.list_resource_templates()).resource_templates
        for name in NAMES:
            for address in (
                UriTemplate.parse(template.uri_template).expand({"table": "documents", "source": name}),
                f"lancelot://documents/{name}",
                UriTemplate.parse("lancelot://{table}/{source}").expand({"table": "documents", "source": name}),
            ):
                assert await text_at(client, address) == f"start of {name}\n\nend of {name}"

    session(settings, use)


@given(table=st.text(min_size=1), source=st.text(min_size=1))
def test_an_address_gives_back_the_names_that_it_was_made_of(table: str, source: str) -> None:
    table, source = lancelot.clean_surrogates(table), lancelot.one_line(source)
    address = lancelot.document_address(table, source)
    assert address.isascii()
    assert not {"..", "."} & set(address.split("/")[3:-1])
    assert lancelot.parse_document_address(address)[:2] == (table, source)


# The list


def test_pages_of_several_tables_hold_every_document_once(make_table: MakeTable, make_settings: MakeSettings) -> None:
    names = [f"{number:03}" for number in range(2 * lancelot.MAX_LIMIT)]
    make_table(documents(*names), name="b")
    make_table({"vector": [[1.0]]}, name="c-without-text")
    make_table(documents("x" * 4000, *names[:60], "ü" * 1300), name="d")
    folder = make_table(documents("only", ""), name="A")
    pages = session(make_settings(LANCEDB_PATH=folder), every_page)
    addresses = [resource.uri for page in pages for resource in page.resources]
    wanted = [("A", "only"), *(("b", name) for name in names), *(("d", name) for name in names[:60])]
    wanted += [("d", "x" * 4000), ("d", "ü" * 1300)]
    assert addresses == [lancelot.document_address(*pair) for pair in wanted]
    assert all(len(page.model_dump_json()) < lancelot.MAX_ANSWER_BYTES + 1000 for page in pages)
    assert {(page.ttl_ms, page.cache_scope) for page in pages} == {(0, "private")}


def test_a_list_of_long_names_is_cut_by_its_size(make_table: MakeTable, make_settings: MakeSettings) -> None:
    names = [f"{number:02}{'ü' * 3000}" for number in range(20)]
    pages = session(make_settings(LANCEDB_PATH=make_table(documents(*names))), every_page)
    assert sum(len(page.resources) for page in pages) == len(names)
    assert all(len(page.model_dump_json()) < lancelot.MAX_ANSWER_BYTES + 1000 for page in pages)


def test_where_a_table_is_named_the_documents_of_that_one_are_listed(
    make_table: MakeTable, make_settings: MakeSettings
) -> None:
    make_table(documents("in a"), name="a")
    folder = make_table(documents("in b"), name="b")
    (page,) = session(make_settings(LANCEDB_PATH=folder, LANCEDB_TABLE="b"), every_page)
    assert [resource.uri for resource in page.resources] == ["lancelot://b/in%20b"]


def test_a_list_goes_on_where_its_cursor_was_removed(make_table: MakeTable, make_settings: MakeSettings) -> None:
    settings = make_settings(LANCEDB_PATH=make_table(documents("a", "c")))
    page = session(settings, lambda client: client.list_resources(cursor="lancelot://documents/b"))
    assert [resource.uri for resource in page.resources] == ["lancelot://documents/c"]
    error = error_of(settings, lambda client: client.list_resources(cursor="7"), mode="legacy")
    assert (error.code, error.message.partition(".")[0]) == (
        types.INVALID_PARAMS,
        '"7" is not the address of a document',
    )


def test_a_folder_without_tables_has_no_documents(tmp_path: Path, make_settings: MakeSettings) -> None:
    (page,) = session(make_settings(LANCEDB_PATH=tmp_path), every_page)
    assert page.resources == []


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path, make_settings: MakeSettings) -> None:
    error = error_of(make_settings(LANCEDB_PATH=tmp_path / "none"), lambda client: client.list_resources())
    assert error.code == types.INTERNAL_ERROR
    assert "cannot be opened" in error.message


# Reading


def test_a_change_of_the_table_is_seen_by_the_next_request(make_table: MakeTable, make_settings: MakeSettings) -> None:
    import lancedb

    folder = make_table(documents("a", "b"))

    async def use(client: Client) -> list[str]:
        table = lancedb.connect(folder).open_table("documents")
        seen = [len((await client.list_resources()).resources)]
        table.add([{"source": "c", "text": "new"}])
        table.delete("source = 'a'")
        seen += [resource.name for resource in (await client.list_resources()).resources]
        with pytest.raises(MCPError, match='There is no document "a" in documents'):
            await client.read_resource("lancelot://documents/a")
        lancedb.connect(folder).create_table("documents", [{"source": "b", "text": "other"}], mode="overwrite")
        return [*map(str, seen), await text_at(client, "lancelot://documents/b")]

    assert session(make_settings(LANCEDB_PATH=folder), use) == ["2", "b", "c", "other"]


@pytest.mark.parametrize(
    "address", ["lancelot://documents/none", "lancelot://documents/", "lancelot://none/a", "file:///a", ""]
)
def test_what_is_not_there_is_an_error_of_the_era_with_a_sentence(
    address: str, make_table: MakeTable, make_settings: MakeSettings
) -> None:
    settings = make_settings(LANCEDB_PATH=make_table(documents("a", "")))
    old, new = (error_at(settings, address, mode=mode) for mode in ("legacy", "auto"))
    assert (old.code, new.code) == (-32002, types.INVALID_PARAMS)
    assert old.message == new.message
    assert new.message.endswith(".")


def test_chunks_are_in_their_order_and_a_title_gathers_those_without_a_source(
    make_table: MakeTable, make_settings: MakeSettings
) -> None:
    columns = {
        "source": ["a", "", "a", None, "a"],
        "title": ["A", "Title", "A", "Title", "A"],
        "chunk_index": [2, 0, 0, 1, 1],
        "text": ["three", "one of a title", "one", "two of a title", "two"],
    }
    settings = make_settings(LANCEDB_PATH=make_table(columns))
    assert session(settings, lambda client: text_at(client, "lancelot://documents/a")) == "one\n\ntwo\n\nthree"
    text = session(settings, lambda client: text_at(client, "lancelot://documents/Title"))
    assert text == "one of a title\n\ntwo of a title"


@given(count=st.integers(1, 400), room=st.integers(60, 200), overlap=st.integers(10, 50))
def test_overlapping_chunks_give_back_the_text_that_was_cut(count: int, room: int, overlap: int) -> None:
    whole = " ".join(f"word{number}" for number in range(count))
    chunks = [whole[at : at + room] for at in range(0, max(1, len(whole) - overlap), room - overlap)]
    hits = [lancelot.Hit(number, 0.0, "", "", chunk, {}) for number, chunk in enumerate(chunks)]
    assert lancelot.document_text("documents", "a", hits) == whole


@pytest.mark.parametrize("lengths", [[150_000], [30_000] * 5, [60_000, 200_000], [100] * 3000])
def test_a_long_document_is_cut_where_another_call_goes_on(
    lengths: list[int], make_table: MakeTable, make_settings: MakeSettings
) -> None:
    chunks = [(f"{number:05}ü" * length)[:length] for number, length in enumerate(lengths)]
    folder = make_table({"source": ["a.md"] * len(chunks), "text": chunks})

    async def use(client: Client) -> tuple[str, str]:
        text = await text_at(client, "lancelot://documents/a.md")
        onward = lancelot.parse_json_object(text.rpartition(" with ")[2].rstrip("]"))
        (content,) = (await client.call_tool("lancedb_read", dict(onward or {}))).content
        assert isinstance(content, types.TextContent)
        return text, content.text

    text, read = session(make_settings(LANCEDB_PATH=folder), use)
    assert 90_000 < len(text.encode()) < lancelot.MAX_ANSWER_BYTES
    kept = text.partition("\n\n[The document is cut here.")[0]
    following = (lancelot.parse_json_object(read) or {})["text"]
    joined = "\n\n".join(chunks)
    assert joined.startswith(kept)
    rest = joined[len(kept) :].lstrip("\n")
    assert following
    assert rest.startswith(following[:100])


def test_a_document_is_named_by_the_table_beside_its_chunks(make_table: MakeTable, make_settings: MakeSettings) -> None:
    make_table({"id": ["d1"], "uri": ["file:///notes/zebra.md"], "title": ["Zebras"]}, name="document_meta")
    folder = make_table({"document_id": ["d1", "d1"], "content": ["b", "a"], "order": [1, 0]}, name="chunks")

    async def use(client: Client) -> tuple[str, str | None, str]:
        (resource,) = (await client.list_resources()).resources
        return resource.uri, resource.title, await text_at(client, resource.uri)

    seen = session(make_settings(LANCEDB_PATH=folder), use)
    assert seen == ("lancelot://chunks/file:///notes/zebra.md", "Zebras", "a\n\nb")


def test_a_document_without_text_says_so(make_table: MakeTable, make_settings: MakeSettings) -> None:
    settings = make_settings(LANCEDB_PATH=make_table({"source": ["a", "b"], "text": ["", "text"]}))
    assert (
        session(settings, lambda client: text_at(client, "lancelot://documents/a")) == "[The document holds no text.]"
    )


def test_what_is_hidden_from_a_person_is_not_in_a_document(make_table: MakeTable, make_settings: MakeSettings) -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    folder = make_table({"source": [f"a{hidden}\x1b.md"], "text": [f"seen{hidden}"], "title": [f"T{hidden}\n\x07"]})

    async def use(client: Client) -> tuple[types.Resource, str]:
        (resource,) = (await client.list_resources()).resources
        return resource, await text_at(client, resource.uri)

    resource, text = session(make_settings(LANCEDB_PATH=folder), use)
    assert (resource.uri, resource.name, resource.title, text) == ("lancelot://documents/a%20.md", "a .md", "T", "seen")


# Failures


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder that does not answer."""
    go_on = threading.Event()
    monkeypatch.setattr(lancelot, "RESOURCE_SECONDS", 0.05)
    monkeypatch.setattr(lancelot.Store, "table_names", lambda _self: go_on.wait(SECONDS) and [])
    yield
    go_on.set()


@pytest.mark.usefixtures("hanging")
def test_a_folder_that_does_not_answer_is_a_sentence(make_settings: MakeSettings, tmp_path: Path) -> None:
    error = error_at(make_settings(LANCEDB_PATH=tmp_path), "lancelot://documents/a")
    assert error.code == types.INTERNAL_ERROR
    assert error.message.startswith("No answer within 0.05 s.")


def test_a_defect_shows_nothing_of_its_inside(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lancelot.Store, "table_names", lambda _self: {}["inside"])
    error = error_at(make_settings(LANCEDB_PATH=tmp_path), "lancelot://documents/a")
    assert error.message.startswith("resources/read failed because of a bug in Lancelot")
    assert "inside" not in error.message
    assert "inside" in caplog.text


# Completion


def completed(settings: lancelot.Settings, variable: str, typed: str, **others: str) -> types.Completion:
    reference, argument = (
        types.ResourceTemplateReference(uri=lancelot.DOCUMENT_TEMPLATE),
        {"name": variable, "value": typed},
    )
    return session(
        settings, lambda client: client.complete(reference, argument, context_arguments=others or None)
    ).completion


def test_tables_and_sources_are_completed(make_table: MakeTable, make_settings: MakeSettings) -> None:
    make_table(documents("x"), name="a")
    sources = ["a notes.md", "notes/b.md", "notes/c.md"]
    folder = make_table({"source": sources, "title": ["", "The Plan", ""], "text": ["t"] * 3})
    settings = make_settings(LANCEDB_PATH=folder)
    assert completed(settings, "table", "").values == ["a", "documents"]
    assert completed(settings, "table", "DOC").values == ["documents"]
    assert completed(settings, "source", "N", table="documents").values == [*sources[1:], sources[0]]
    assert completed(settings, "source", "the plan", table="documents").values == ["notes/b.md"]
    assert completed(settings, "source", "notes/").values == ["notes/b.md", "notes/c.md"]
    assert completed(settings, "source", "", table="none").values == []
    assert completed(settings, "other", "").values == []


def test_no_more_completions_are_given_than_the_protocol_allows(
    make_table: MakeTable, make_settings: MakeSettings
) -> None:
    settings = make_settings(LANCEDB_PATH=make_table(documents(*(f"{number:03}" for number in range(101)))))
    completion = completed(settings, "source", "", table="documents")
    assert (len(completion.values), completion.total, completion.has_more) == (100, 101, True)


@pytest.mark.parametrize(
    "reference", [types.PromptReference(name="x"), types.ResourceTemplateReference(uri="file:///{path}")]
)
def test_only_the_template_is_completed(reference: Any, make_settings: MakeSettings) -> None:
    error = error_of(make_settings(), lambda client: client.complete(reference, {"name": "table", "value": ""}))
    assert (error.code, error.message.partition(".")[0]) == (types.INVALID_PARAMS, "Only addresses can be completed")
